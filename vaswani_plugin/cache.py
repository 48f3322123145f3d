"""What the decoder remembers between two steps of generation.

The paper's decoder is auto-regressive (Section 3): it consumes what it wrote before. Keys and
values of earlier positions do not change, so each step computes those of the newest one only.

The hypotheses of a sentence are paths in one tree. A *node* is a position that some hypothesis has read: its keys
and values are kept once, however many hypotheses have it in their past, and each hypothesis sees the nodes of its own
past. Where beam search reorders hypotheses, what they see changes, and no key or value is moved.
"""

import torch

from .attention import Mask


class DecoderCache:
    """Keys and values of all layers for a batch of hypotheses, one in each row, as many for each sentence.

    In both attentions the hypotheses of a sentence are queries that stand side by side. The encoder's
    output is kept once per sentence.

    Args:
        memory: for each layer the keys ``[sentences, heads, source, d_k]`` and values
            ``[sentences, heads, source, d_v]`` of the encoder's output
        memory_allowed: boolean ``[sentences, 1, 1, source]``, false at padding, or ``None``
        sentence_of_row: ``[rows]``, the sentence that each hypothesis translates

    Attributes:
        beams: hypotheses of each sentence
        memory_mask: the mask of ``memory_allowed`` for the sentences that still have hypotheses, or ``None``
        mask: of this step, which nodes each hypothesis sees; ``None``: all
    """

    NODES = 128  # that there is room for at first
    STEPS = 8  # after so many, nodes that are in no hypothesis' past any more are looked for

    def __init__(self, memory, memory_allowed, sentence_of_row):
        self._memory = memory
        self._memory_allowed = memory_allowed
        self._length = 0
        # Of each layer, [sentences, heads, capacity, d_k] and [sentences, heads, capacity, d_v].
        self._kept = [[None, None] for _ in memory]
        self._regroup(sentence_of_row, sentence_of_row.new_ones(sentence_of_row.numel(), 0, dtype=torch.bool))
        # Their heads come as slices of a projection, which each product with them would copy.
        self._memory = [(key.contiguous(), value.contiguous()) for key, value in self._memory]

    def memory(self, layer):
        """Keys and values of the encoder's output for ``layer``."""
        return self._memory[layer]

    def next_position(self):
        """Begin a step; returns the position (from 0) of the token that it decodes."""
        sentences, beams, _ = self._visible.shape
        if self._length and self._length % self.STEPS == 0:
            self._prune()
        own = torch.eye(beams, dtype=torch.bool, device=self._visible.device)
        self._visible = torch.cat([self._visible, own.expand(sentences, -1, -1)], dim=2)
        self._length += 1
        # Of one hypothesis to a sentence, all nodes are its own.
        self.mask = None if beams == 1 else self._for_all_heads(Mask.of_seeing, self._visible.unsqueeze(1))
        return self._length - 1

    def append(self, layer, key, value):
        """Add the newest node of each hypothesis to ``layer`` and return all nodes so far.

        Args:
            key, value: ``[sentences, heads, beams, d_k]`` and ``[sentences, heads, beams, d_v]``

        Returns:
            ``[sentences, heads, nodes, d_k]`` and ``[sentences, heads, nodes, d_v]``
        """
        nodes = self._visible.size(2)
        both = []
        for index, newest in enumerate((key, value)):
            kept = self._kept[layer][index]
            if kept is None or kept.size(2) < nodes:
                kept = self._kept[layer][index] = _with_room(newest, kept, max(nodes, self.NODES))
            kept[:, :, nodes - self.beams : nodes] = newest
            both.append(kept[:, :, :nodes])
        return both

    def reorder(self, order):
        """Row ``i`` becomes what row ``order[i]`` was. Rows may be repeated or left out."""
        sentence_of_row = self._sentence_of_row[order]
        visible = self._visible.flatten(0, 1)[order]
        if torch.equal(sentence_of_row, self._sentence_of_row):
            self._visible = visible.view_as(self._visible)
        else:
            self._regroup(sentence_of_row, visible)

    def _regroup(self, sentence_of_row, visible):
        """Drop sentences without rows; find how many rows each sentence has. ``visible``: ``[rows, nodes]``."""
        rows = sentence_of_row.numel()
        alive, sentence_of_row = torch.unique(sentence_of_row, return_inverse=True)
        beams = rows // max(alive.numel(), 1)
        grouped = torch.arange(alive.numel(), device=alive.device).repeat_interleave(beams)
        if not torch.equal(grouped, sentence_of_row):
            # Not beam search's order, where the rows of a sentence stand together: one sentence for each row.
            alive, beams = alive[sentence_of_row], 1
            sentence_of_row = torch.arange(rows, device=alive.device)
        self._sentence_of_row, self.beams = sentence_of_row, beams
        self._visible = visible.view(alive.numel(), beams, visible.size(1))
        self._keep(alive, *self._seen())
        sentences = self._memory[0][0].size(0)
        if not torch.equal(alive, torch.arange(sentences, device=alive.device)):
            self._memory = [tuple(kept.index_select(0, alive) for kept in both) for both in self._memory]
            if self._memory_allowed is not None:
                self._memory_allowed = self._memory_allowed[alive]
        self.memory_mask = None
        if self._memory_allowed is not None:
            all_see = self._memory_allowed.any(dim=-1).all()
            made = Mask.of_seeing if all_see else Mask.of
            self.memory_mask = self._for_all_heads(made, self._memory_allowed.expand(-1, -1, self.beams, -1))

    def _for_all_heads(self, make, allowed):
        """A mask of ``allowed [sentences, 1, beams, keys]`` that is laid out as the scores are, to be added in one go."""
        key, _ = self._memory[0]
        mask = make(allowed, key.dtype)
        return mask._replace(bias=mask.bias.expand(-1, key.size(1), -1, -1).contiguous())

    def _prune(self):
        chosen, count = self._seen()
        if 3 * count <= 2 * self._visible.size(2):  # else they are not worth moving the others
            self._keep(torch.arange(len(self._visible), device=chosen.device), chosen, count)

    def _seen(self):
        """``[sentences, nodes]``, the nodes with those first that are in some hypothesis' past, and the most of these."""
        seen = self._visible.any(dim=1)
        count = int(seen.sum(dim=1).max()) if seen.numel() else 0
        return seen.int().argsort(dim=1, descending=True, stable=True), count

    def _keep(self, sentences, nodes, count):
        """Give up all but ``sentences``, of which ``_visible`` is already, and the first ``count`` of ``nodes``."""
        nodes = nodes[:, :count]
        self._visible = self._visible.gather(2, nodes.unsqueeze(1).expand(-1, self.beams, -1))
        if self._kept[0][0] is None:
            return
        heads, capacity = self._kept[0][0].shape[1:3]  # those of all layers, and of keys and values
        first = (sentences.unsqueeze(1) * heads + torch.arange(heads, device=nodes.device)) * capacity
        places = (first.unsqueeze(2) + nodes.unsqueeze(1)).flatten()  # [sentences * heads * count]
        for layer in self._kept:
            for index, kept in enumerate(layer):
                chosen = kept.flatten(0, 2).index_select(0, places)
                if sentences.numel() > kept.size(0):
                    kept = kept.new_empty(sentences.numel(), *kept.shape[1:])
                layer[index] = kept[: sentences.numel()]
                layer[index][:, :, :count] = chosen.view(sentences.numel(), heads, count, kept.size(3))


def _with_room(like, kept, capacity):
    """``kept`` copied to where there is room for twice as many nodes, or for ``capacity``."""
    if kept is None:
        return like.new_empty(*like.shape[:2], capacity, like.size(3))
    bigger = kept.new_empty(*kept.shape[:2], max(capacity, 2 * kept.size(2)), kept.size(3))
    bigger[:, :, : kept.size(2)] = kept
    return bigger
