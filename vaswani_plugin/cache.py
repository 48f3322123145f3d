"""What the decoder remembers between two steps of generation.

The paper's decoder is auto-regressive (Section 3): it consumes what it wrote before. Keys and
values of earlier positions do not change, so each step computes those of the newest one only.
In beam search a *row* is one hypothesis; rows of the same source sentence share its memory.
"""

import torch


class DecoderCache:
    """Keys and values of all layers, for a batch of hypotheses that beam search reorders.

    Self-attention keys and values of all layers lie in one tensor, time first, so that a
    reorder is a single copy. Those of the encoder's output are kept once per sentence.

    Args:
        memory: for each layer the keys ``[sentences, heads, source, d_k]`` and values
            ``[sentences, heads, source, d_v]`` of the encoder's output
        memory_allowed: boolean ``[sentences, 1, 1, source]``, false at padding, or ``None``
        sentence_of_row: ``[rows]``, the sentence that each hypothesis translates
    """

    FIRST_CAPACITY = 32

    def __init__(self, memory, memory_allowed, sentence_of_row):
        self._memory = memory
        self.memory_allowed = memory_allowed
        self.length = 0
        self._kept = None  # [capacity, layers, rows, heads * (d_k + d_v)]
        self._spare = None
        self._assign(sentence_of_row)

    def memory(self, layer):
        """Keys and values of the encoder's output for ``layer``."""
        return self._memory[layer]

    def fold_beams(self, x):
        """``[rows, 1, width]`` to ``[sentences, beams, width]``."""
        return x.view(-1, self.beams, x.size(-1))

    def unfold_beams(self, x):
        """``[sentences, beams, width]`` to ``[rows, 1, width]``."""
        return x.reshape(-1, 1, x.size(-1))

    def next_position(self):
        """Begin a step; returns the position (from 0) of the token that it decodes."""
        self.length += 1
        return self.length - 1

    def append(self, layer, key, value):
        """Add the newest position of ``layer`` and return all positions so far.

        Args:
            key, value: ``[rows, heads, 1, d_k]`` and ``[rows, heads, 1, d_v]``

        Returns:
            ``[rows, heads, length, d_k]`` and ``[rows, heads, length, d_v]``
        """
        heads, d_k, d_v = key.size(1), key.size(3), value.size(3)
        if self._kept is None or self.length > self._kept.size(0):
            self._grow(key, heads * (d_k + d_v))
        kept = self._kept[: self.length, layer]
        keys, values = kept.split([heads * d_k, heads * d_v], dim=-1)
        keys[-1] = key.flatten(1)
        values[-1] = value.flatten(1)
        return (
            keys.unflatten(-1, (heads, d_k)).permute(1, 2, 0, 3),
            values.unflatten(-1, (heads, d_v)).permute(1, 2, 0, 3),
        )

    def reorder(self, order):
        """Row ``i`` becomes what row ``order[i]`` was. Rows may be repeated or left out."""
        if self._kept is not None:
            done = slice(0, self.length)
            if order.numel() != self._kept.size(2):
                self._kept = self._kept.index_select(2, order)
                self._spare = torch.empty_like(self._kept)
            else:
                torch.index_select(self._kept[done], 2, order, out=self._spare[done])
                self._kept, self._spare = self._spare, self._kept
        sentence_of_row = self._sentence_of_row[order]
        if not torch.equal(sentence_of_row, self._sentence_of_row):
            self._assign(sentence_of_row)

    def _grow(self, like, width):
        capacity = self.FIRST_CAPACITY if self._kept is None else 2 * self._kept.size(0)
        bigger = like.new_empty(capacity, len(self._memory), like.size(0), width)
        if self._kept is not None:
            bigger[: self._kept.size(0)] = self._kept
        self._kept = bigger
        self._spare = torch.empty_like(bigger)

    def _assign(self, sentence_of_row):
        """Drop the memory of sentences without rows; find how many rows each sentence has."""
        rows = sentence_of_row.numel()
        alive, sentence_of_row = torch.unique(sentence_of_row, return_inverse=True)
        beams = rows // max(alive.numel(), 1)
        grouped = torch.arange(alive.numel(), device=alive.device).repeat_interleave(beams)
        if not torch.equal(grouped, sentence_of_row):
            # Not beam search's order, where the rows of a sentence stand together: one memory per row.
            alive, beams = alive[sentence_of_row], 1
            sentence_of_row = torch.arange(rows, device=alive.device)
        self._sentence_of_row = sentence_of_row
        self.beams = beams
        sentences = self._memory[0][0].size(0)
        if alive.numel() != sentences or not torch.equal(alive, torch.arange(sentences, device=alive.device)):
            self._memory = [(key[alive], value[alive]) for key, value in self._memory]
            if self.memory_allowed is not None:
                self.memory_allowed = self.memory_allowed[alive]
