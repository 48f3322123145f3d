"""Beam search with a length penalty: Section 6.1, after Wu et al. 2016, which the paper cites.

At each step the ``2 * beam`` best continuations of a sentence are looked at. Those that end are
finished hypotheses; of the others the ``beam`` best live on. As in the authors' code, finished
hypotheses take no place from living ones, and a finished hypothesis scores its log-probability
divided by the penalty of its length, end token included.

A sentence is done when no living hypothesis can still overtake: log-probabilities only fall, so the
best it can reach is its log-probability now, divided by the largest penalty among the lengths it may
still have. Done sentences leave the batch.
"""

import math

import torch
import torch.nn.functional as F

from .errors import UserError
from .inference import EXTRA_LENGTH, length_limit

# Candidates are found in columns of the logits, this many entries in each: first the columns with the largest
# maxima, then the largest entries in them, which is exact and reads the logits only once.
COLUMN = 16
# Below so many log-probabilities it does not pay.
FEW_ENTRIES = 1 << 17
NEVER = -math.inf


class BeamSearch:
    """Finds the best translations; takes the place of fairseq's ``SequenceGenerator``.

    Args:
        models: models of fairseq with an incremental decoder; of several, probabilities are averaged
        dictionary: of the target
        beam: living hypotheses per sentence
        penalty: maps a length in tokens, end token included, to the divisor of log-probabilities;
            it must rise or fall monotonically
        max_len_a, max_len_b: a sentence of ``n`` source tokens gets at most ``a n + b`` target tokens;
            neither counts the end token
        min_len: least target tokens before the end token
        nbest: finished hypotheses that are wanted; the search ends when these are certain
        unk_penalty: at least 0, subtracted from the log-probability of ``<unk>``
        temperature: divides the logits
        symbols_to_strip_from_output: fairseq's, entries that printed hypotheses leave out
    """

    def __init__(self, models, dictionary, beam, penalty, max_len_a=1.0, max_len_b=EXTRA_LENGTH, min_len=1,
                 nbest=1, unk_penalty=0.0, temperature=1.0, symbols_to_strip_from_output=None):
        if beam < 1:
            raise UserError(f"--beam must be at least 1, not {beam}")
        if nbest < 1:
            raise UserError(f"--nbest must be at least 1, not {nbest}")
        if temperature <= 0:
            raise UserError(f"--temperature must be above 0, not {temperature}")
        if unk_penalty < 0:
            raise ValueError(f"log-probabilities must not rise: unk_penalty is {unk_penalty}")
        self.models = list(models)
        for model in self.models:
            model.eval()
        self.pad, self.unk, self.eos = dictionary.pad(), dictionary.unk(), dictionary.eos()
        self.beam, self.penalty, self.nbest = beam, penalty, nbest
        self.max_len_a, self.max_len_b, self.min_len = max_len_a, max_len_b, min_len
        self.unk_penalty, self.temperature = unk_penalty, temperature
        self.symbols_to_strip_from_output = set(symbols_to_strip_from_output or ()) | {self.eos}

    def limits(self, src_tokens):
        """For each sentence the most target tokens it may get, as a list of integers.

        Raises:
            UserError: a limit below ``min_len``
        """
        real = src_tokens.ne(self.pad) & src_tokens.ne(self.eos)
        most = min(model.max_decoder_positions() for model in self.models) - 1
        limits = [min(length_limit(n, self.max_len_a, self.max_len_b), most) for n in real.sum(dim=1).tolist()]
        if min(limits) < self.min_len:
            raise UserError(
                f"a sentence may get {min(limits)} tokens and --min-len asks for {self.min_len}:"
                " raise --max-len-b or lower --min-len"
            )
        return limits

    @torch.no_grad()
    def generate(self, models, sample, prefix_tokens=None, constraints=None, bos_token=None):
        """Translate a batch; the signature is fairseq's, and ``models`` are those given at the start.

        Args:
            sample: with ``net_input.src_tokens [sentences, source]``
            prefix_tokens: ``[sentences, prefix]``, padded; outputs begin with them
            bos_token: what the decoder reads first; default: the end token

        Returns:
            for each sentence its finished hypotheses, best first: at least one, and ``nbest`` if there
            are as many. Each is a dictionary with ``tokens`` (end token included), ``score`` and
            ``positional_scores`` (log-probability of each token).
        """
        if constraints is not None:
            raise ValueError("BeamSearch knows no constraints: build the generator with --constraints")
        net_input = sample["net_input"]
        src_tokens = net_input["src_tokens"]
        if src_tokens.size(0) == 0:
            return []
        steps = _Steps(self.models, net_input, self.temperature)
        sentences = _Sentences(self, self.limits(src_tokens), src_tokens.device,
                               self.eos if bos_token is None else bos_token)
        for step in range(max(sentences.limits) + 1):
            log_probs = steps.next(sentences.tokens[:, : step + 1]).unflatten(0, sentences.scores.shape)
            self._forbid(step, log_probs, self._forced(step, sentences, prefix_tokens))
            candidates = self._candidates(log_probs, sentences.scores)
            del log_probs  # one at a time: they are the largest tensor here
            order, some_left = sentences.advance(step, *candidates)
            if not sentences.alive:
                break
            steps.reorder(order, some_left or step == 0)
        return sentences.results()

    def _forced(self, step, sentences, prefix_tokens):
        """``{row: token}`` of the sentences in the batch whose next token is not free."""
        forced = {}
        if prefix_tokens is not None and step < prefix_tokens.size(1):
            tokens = prefix_tokens[:, step].tolist()
            forced = {row: tokens[n] for row, n in enumerate(sentences.alive) if tokens[n] != self.pad}
        if step >= sentences.next_limit:
            limits = sentences.limits
            forced.update({row: self.eos for row, n in enumerate(sentences.alive) if step >= limits[n]})
        return forced

    def _forbid(self, step, log_probs, forced):
        """Write ``-inf`` to what may not come next. ``log_probs``: ``[sentences, rows, entries]``."""
        if self.unk_penalty:
            log_probs[..., self.unk] -= self.unk_penalty
        kept = {row: log_probs[row, :, token].clone() for row, token in forced.items()}
        log_probs[..., self.pad] = NEVER
        if step < self.min_len:
            log_probs[..., self.eos] = NEVER
        for row, token in forced.items():
            log_probs[row] = NEVER
            log_probs[row, :, token] = kept[row]

    def _candidates(self, log_probs, scores):
        """The ``2 * beam`` best continuations of each sentence, best first.

        Args:
            log_probs: ``[sentences, rows, entries]``, of the next token
            scores: ``[sentences, rows]``, log-probabilities of the hypotheses so far

        Returns:
            ``[sentences, 2 * beam]`` each: log-probabilities, rows within the sentence, tokens
        """
        wanted = 2 * self.beam
        scores = scores.unsqueeze(2)
        sentences, rows, entries = log_probs.shape
        columns = entries // COLUMN
        if log_probs.numel() <= FEW_ENTRIES or rows * columns < wanted:
            values, index = _top((log_probs + scores).flatten(1), wanted)
            return values, index // entries, index % entries
        # Column j holds the entries j, j + columns, j + 2 columns, ...; what is left over is looked at in full.
        even = columns * COLUMN
        table = log_probs[..., :even].unflatten(2, (COLUMN, columns))
        chosen = (table.amax(dim=2) + scores).flatten(1).topk(wanted, dim=1, sorted=False).indices
        row, column = chosen // columns, chosen % columns
        sentence = torch.arange(sentences, device=chosen.device).unsqueeze(1)
        found = table[sentence, row, :, column] + scores[sentence, row]
        rest = log_probs[..., even:] + scores
        values, index = torch.cat([found.flatten(1), rest.flatten(1)], dim=1).topk(wanted, dim=1)
        which = (index // COLUMN).clamp(max=wanted - 1)
        parents, tokens = row.gather(1, which), index % COLUMN * columns + column.gather(1, which)
        if entries > even:
            index, width = index - wanted * COLUMN, entries - even
            parents = torch.where(index < 0, parents, index // width)
            tokens = torch.where(index < 0, tokens, even + index % width)
        return values, parents, tokens


def _top(values, wanted):
    """``topk`` where there may be fewer than ``wanted``: the rest is ``-inf`` at index 0."""
    best, index = values.topk(min(wanted, values.size(1)), dim=1)
    missing = wanted - best.size(1)
    return F.pad(best, (0, missing), value=NEVER), F.pad(index, (0, missing))


class _Steps:
    """The models, one step at a time; of several, probabilities are averaged."""

    def __init__(self, models, net_input, temperature):
        self.models = models
        self.temperature = temperature
        self.states = [{} for _ in models]
        for model in models:
            if hasattr(model, "set_beam_size"):
                model.set_beam_size(1)  # fairseq's own generator may have told the model to expect other rows
        self.encoded = [model.encoder.forward_torchscript(net_input) for model in models]

    def next(self, tokens):
        """Log-probabilities ``[rows, entries]`` of the next token, after ``tokens [rows, time]`` of all rows."""
        outputs = [self._log_probs(index, tokens) for index in range(len(self.models))]
        if len(outputs) == 1:
            return outputs[0]
        return torch.stack(outputs).logsumexp(dim=0) - math.log(len(outputs))

    def _log_probs(self, index, tokens):
        model = self.models[index]
        logits, extra = model.decoder(
            tokens, encoder_out=self.encoded[index], incremental_state=self.states[index]
        )[:2]
        logits = logits[:, -1:]
        if self.temperature != 1:
            logits = logits / self.temperature
        if hasattr(model.decoder, "log_probs_"):
            return model.decoder.log_probs_(logits[:, 0])
        return model.get_normalized_probs((logits, extra), log_probs=True, sample=None)[:, 0]

    def reorder(self, order, other_sentences):
        """Row ``i`` continues what row ``order[i]`` was; ``other_sentences``: not the same rows per sentence."""
        for index, model in enumerate(self.models):
            model.decoder.reorder_incremental_state_scripting(self.states[index], order)
            if other_sentences:
                self.encoded[index] = model.encoder.reorder_encoder_out(self.encoded[index], order)


class _Sentences:
    """The hypotheses of a batch: living ones in tensors, row by row, and finished ones in lists.

    Attributes:
        alive: for each sentence that is still in the batch, its number in the sample
        limits: for each sentence of the sample, the most tokens it may get
        next_limit: the least of the limits of ``alive``
        tokens: ``[sentences * rows, time]``, what the decoder has read
        scores: ``[sentences, rows]``, log-probabilities of the hypotheses
    """

    def __init__(self, search, limits, device, first_token):
        self.search = search
        self.limits, self.next_limit = limits, min(limits)
        self.alive = list(range(len(limits)))
        self.finished = [[] for _ in limits]
        self.tokens = torch.full((len(limits), max(limits) + 2), search.pad, device=device)
        self.tokens[:, 0] = first_token
        self.history = torch.zeros(len(limits), max(limits) + 1, device=device)  # scores after each token
        self.scores = torch.zeros(len(limits), 1, device=device)
        self.worst = torch.full((len(limits),), NEVER, device=device)  # score of the last of nbest finished ones
        self.last_penalty = torch.tensor([search.penalty(limit + 1) for limit in limits], device=device)

    def advance(self, step, scores, parents, tokens):
        """Take the candidates of a step, ``[sentences, 2 * beam]`` each, best first.

        Returns ``order`` (row ``i`` continues row ``order[i]`` of before) and whether sentences left the batch.
        """
        first_row = torch.arange(len(self.alive), device=scores.device).unsqueeze(1) * self.scores.size(1)
        parents = parents + first_row
        ended = tokens.eq(self.search.eos)
        self._finish(step, ended, scores, parents)
        living = scores.masked_fill(ended, NEVER)
        self.scores, chosen = living.topk(self.search.beam, dim=1)
        order, tokens = parents.gather(1, chosen), tokens.gather(1, chosen)

        # A hypothesis has step + 1 tokens and may end with step + 2 to limit + 1.
        penalty = self.last_penalty.clamp(min=self.search.penalty(step + 2))
        left = self.worst < self.scores[:, 0] / penalty
        some_left = not left.all()
        if some_left:
            order, tokens, self.scores = order[left], tokens[left], self.scores[left]
            self.worst, self.last_penalty = self.worst[left], self.last_penalty[left]
            self.alive = [n for n, keep in zip(self.alive, left.tolist()) if keep]
            self.next_limit = min((self.limits[n] for n in self.alive), default=0)
        order = order.flatten()
        self.tokens = self.tokens.index_select(0, order)
        self.tokens[:, step + 1] = tokens.flatten()
        self.history = self.history.index_select(0, order)
        self.history[:, step] = self.scores.flatten()
        return order, some_left

    def _finish(self, step, ended, scores, parents):
        """Keep the ``nbest`` best of the hypotheses that have ended."""
        penalised = scores / self.search.penalty(step + 1)
        for row, candidate in (ended & (penalised > self.worst.unsqueeze(1))).nonzero().tolist():
            parent = parents[row, candidate]
            tokens = self.tokens[parent, 1 : step + 2].clone()
            tokens[step] = self.search.eos
            positional = self.history[parent, : step + 1].clone()
            positional[step] = scores[row, candidate]
            positional[1:] -= positional[:-1].clone()
            kept = self.finished[self.alive[row]]
            kept.append({
                "tokens": tokens,
                "score": penalised[row, candidate],
                "attention": tokens.new_empty(0),
                "alignment": tokens.new_empty(0),
                "positional_scores": positional,
            })
            kept.sort(key=lambda hypothesis: hypothesis["score"].item(), reverse=True)
            del kept[self.search.nbest :]
            if len(kept) == self.search.nbest:
                self.worst[row] = kept[-1]["score"]

    def results(self):
        """The finished hypotheses of all sentences, best first."""
        for number, kept in enumerate(self.finished):
            if not kept:
                raise UserError(
                    f"the model gives no finite probability for sentence {number} of the batch:"
                    " its weights are broken, take an earlier checkpoint"
                )
        return self.finished
