"""What the plugin and fairseq's own transformer have in common: how fairseq builds, trains, batches and searches."""

import ast
import copy
import functools
import os
import tempfile

import numpy
import torch
from fairseq import optim, options, tasks
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from fairseq.trainer import Trainer

from specs.subject import NotOffered, Sizes, Subject


@functools.cache
def dictionary(entries):
    """A dictionary of so many entries, fairseq's four special ones among them."""
    words = Dictionary()
    for i in range(entries - len(words)):
        words.add_symbol(f"w{i}")
    return words


class _NoEncoder(FairseqEncoder):
    def forward(self, src_tokens, src_lengths=None, **unused):
        return {"encoder_out": [src_tokens.t()[..., None].float()], "encoder_padding_mask": []}

    def reorder_encoder_out(self, encoder_out, new_order):
        return {**encoder_out, "encoder_out": [encoder_out["encoder_out"][0].index_select(1, new_order)]}

    def max_positions(self):
        return 10_000


class _ScriptedDecoder(FairseqIncrementalDecoder):
    """Says word 4 for sure, until `end_at`, where the end symbol has the given log-probability."""

    def __init__(self, words, end_at=None, log_probability=0.0):
        super().__init__(words)
        self.end_at, self.log_probability = end_at, log_probability
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, **unused):
        logits = torch.full((len(prev_output_tokens), 1, len(self.dictionary)), -1e4)
        logits[..., 4] = 0.0
        if prev_output_tokens.size(1) == self.end_at:
            logits[..., 4] = numpy.log1p(-numpy.exp(self.log_probability))
            logits[..., self.dictionary.eos()] = self.log_probability
        return logits, {"attn": [None]}

    def max_positions(self):
        return 10_000


class ScriptedModel(FairseqEncoderDecoderModel):
    """A model whose outputs are known beforehand, to see what the search makes of them."""

    def __init__(self, words, **script):
        super().__init__(_NoEncoder(words), _ScriptedDecoder(words, **script))


class FairseqSubject(Subject):
    """`arch`: names of architectures by the names of `Subject.recipe`; `task`: fairseq's name of the task."""

    padding, start, end = 1, 2, 2
    first_word = 4
    arch = {}
    task = "translation"
    training_flags = ()  # what a user gives to get nearest to the paper

    # ---- the command line -------------------------------------------------------------------------------------------
    @functools.cached_property
    def data(self):
        """A data directory with a joined dictionary of 32 entries and no text."""
        self._folder = tempfile.TemporaryDirectory(prefix="specs-")
        for language in ("de", "en"):
            dictionary(32).save(os.path.join(self._folder.name, f"dict.{language}.txt"))
        return self._folder.name

    @functools.cache  # noqa: B019  (a subject lives as long as the session)
    def parse(self, arch, *flags):
        """The arguments that `fairseq-train DATA --arch ARCH FLAGS` would use."""
        parser = options.get_training_parser(default_task=self.task)
        command = [self.data, "-s", "de", "-t", "en", "--cpu", "--arch", arch, "--task", self.task, *flags]
        return options.parse_args_and_arch(parser, command)

    def known_arch(self, name):
        if name not in self.arch:
            raise NotOffered(f"no architecture for {name}")
        return self.arch[name]

    def width_flags(self, d_model):
        raise NotImplementedError

    @functools.cache  # noqa: B019
    def configuration(self, *flags):
        """fairseq's configuration of the base architecture with these flags added; slow to make, so made once."""
        args = self.parse(self.known_arch("base"), *flags, *self.training_flags)
        return convert_namespace_to_omegaconf(args)

    def trainer(self, d_model):
        """A fresh Trainer of a small model of this width, as fairseq-train builds it."""
        cfg = self.configuration(*self.width_flags(d_model))
        task = tasks.setup_task(cfg.task)
        return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))

    def learning_rates(self, d_model, updates):
        trainer, rates = self.trainer(d_model), []
        trainer.optimizer.optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
        sample = self.sample(torch.tensor([[5, 6, 2]]), torch.tensor([[7, 8, 2]]))
        for update in updates:
            if update > 1:
                trainer.set_num_updates(update - 1)
            trainer.train_step([sample])
        return rates

    def sample(self, source, target):
        return {
            "id": torch.arange(len(source)), "nsentences": len(source), "ntokens": target.numel(), "target": target,
            "net_input": {
                "src_tokens": source, "src_lengths": source.ne(self.padding).sum(1),
                "prev_output_tokens": self.shift_right(target),
            },
        }  # fmt: skip

    def optimizer(self, parameters):
        optimizer = optim.build_optimizer(self.configuration().optimizer, list(parameters)).optimizer
        for group in optimizer.param_groups:
            group["lr"] = 1.0
        return optimizer

    @staticmethod
    def task_for(entries):
        """As much of a task as a criterion needs."""

        class Task:
            target_dictionary = dictionary(entries)

        return Task()

    @staticmethod
    def named_sizes(d_model, heads, d_k=0, d_v=0, **others):
        return Sizes(vocabulary=37000, d_model=d_model, heads=heads, d_k=d_k or d_model // heads, d_v=d_v or d_model // heads, **others)

    @staticmethod
    def betas(args):
        return tuple(ast.literal_eval(str(args.adam_betas)))

    # ---- the model --------------------------------------------------------------------------------------------------
    def _encoded(self, model, source, **flags):
        return model.encoder(source, source.ne(self.padding).sum(dim=1), **flags)

    def encode(self, model, source):
        return self._encoded(model, source)["encoder_out"][0].transpose(0, 1)

    def decode(self, model, states, source, target_in):
        encoded = {**self._encoded(model, source), "encoder_out": [states.transpose(0, 1)]}
        return model.decoder(target_in, encoded, features_only=True)[0]

    def logits(self, model, source, target_in):
        return model(source, source.ne(self.padding).sum(dim=1), target_in)[0]

    def step_logits(self, model, source, target_in):
        encoded, state = self._encoded(model, source), {}
        steps = [model.decoder(target_in[:, : t + 1], encoded, incremental_state=state)[0] for t in range(target_in.size(1))]
        return torch.cat(steps, dim=1)

    def probabilities(self, model, source, target_in):
        output = model(source, source.ne(self.padding).sum(dim=1), target_in)
        return model.get_normalized_probs(output, log_probs=False)

    def shift_right(self, targets):
        """As fairseq's collater does when it is not given the input: the end symbol moves to the front."""
        rows = [{"id": i, "source": row, "target": row} for i, row in enumerate(targets)]
        data = LanguagePairDataset([row["source"] for row in rows], numpy.array([len(row) for row in targets]), dictionary(32),
                                   [row["target"] for row in rows], numpy.array([len(row) for row in targets]), dictionary(32))  # fmt: skip
        return data.collater(rows)["net_input"]["prev_output_tokens"]

    def layers(self, model, stack):
        return list((model.encoder if stack == "encoder" else model.decoder).layers)

    # ---- batches and search -----------------------------------------------------------------------------------------
    def batches(self, lengths, tokens):
        sides = [[torch.full((pair[side],), 5) for pair in lengths] for side in (0, 1)]
        sizes = [numpy.array([len(row) for row in side]) for side in sides]
        words = dictionary(32)
        cfg = self.configuration()
        batches = tasks.setup_task(cfg.task).get_batch_iterator(
            LanguagePairDataset(sides[0], sizes[0], words, sides[1], sizes[1], words),
            max_tokens=tokens,
            max_positions=(1024, 1024),
            required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
        )
        return [list(map(int, group)) for group in batches.frozen_batches]

    @functools.cache  # noqa: B019
    def generation_defaults(self):
        """The arguments of `fairseq-generate DATA` with no flag for the search."""
        parser = options.get_generation_parser(default_task=self.task)
        return options.parse_args_and_arch(parser, [self.data, "-s", "de", "-t", "en", "--path", "none", "--task", self.task])

    @functools.cached_property
    def generation(self):
        return convert_namespace_to_omegaconf(self.generation_defaults())

    def search(self, model, entries, source, **settings):
        """Hypotheses for each row of `[b, s]` sources: lists of (tokens with the end symbol, score).

        `settings`: fairseq-generate's, by name, beside its defaults.
        """
        cfg = copy.deepcopy(self.generation)
        for name, value in settings.items():
            cfg.generation[name] = value
        task = tasks.setup_task(cfg.task)
        task.src_dict = task.tgt_dict = dictionary(entries)
        generator = task.build_generator([model], cfg.generation)
        net_input = {"src_tokens": source, "src_lengths": source.ne(self.padding).sum(dim=1)}
        found = task.inference_step(generator, [model], {"net_input": net_input})
        return [[(h["tokens"].tolist(), float(h["score"])) for h in hypotheses] for hypotheses in found]

    def translate(self, model, source, beam, alpha):
        entries = self.embeddings(model)[2].size(0)
        settings = dict(beam=beam, nbest=beam, lenpen=alpha, max_len_a=1, max_len_b=50)
        (found,) = self.search(model, entries, source, **settings)
        return [(tokens[:-1], score) for tokens, score in found]

    def score(self, log_probability, length, alpha):
        model = ScriptedModel(dictionary(32), end_at=length, log_probability=log_probability).eval()
        source = torch.tensor([[5, self.end]])
        settings = dict(beam=2, nbest=2, lenpen=alpha, max_len_a=1, max_len_b=length + 5, min_len=0)
        (found,) = self.search(model, 32, source, **settings)
        return next(score for tokens, score in found if len(tokens) == length)

    def length_limit(self, source_words, extra=50):
        """In a batch with a longer sentence, sources ending with the end symbol, as fairseq-generate has them."""
        model = ScriptedModel(dictionary(32)).eval()
        source = torch.full((2, source_words + 8), 5)
        source[:, -1] = self.end
        source[0, :7] = self.padding  # fairseq pads sources on the left
        found = self.search(model, 32, source, beam=1, lenpen=0.0, max_len_a=1, max_len_b=extra)
        return len(found[0][0][0]) - 1
