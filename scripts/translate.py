"""Translate raw text: one line out for each line in, whatever it holds."""

import argparse
import itertools
import logging
import sys
from pathlib import Path

import torch
from common import load_checkpoint, run_as_script
from raw_text import Settings, TextPipeline, read_settings
from tqdm import tqdm

logging.basicConfig(level=logging.WARNING)  # before fairseq, which remarks on every optional package that is missing

from fairseq import checkpoint_utils  # noqa: E402
from fairseq.data import data_utils  # noqa: E402

from vaswani_plugin.inference import ALPHA, BEAM, EXTRA_LENGTH  # noqa: E402
from vaswani_plugin.translation import VaswaniTranslationConfig, VaswaniTranslationTask  # noqa: E402

# Lines are read, sorted by length and translated so many at a time; those before stand complete in the output.
BLOCK = 5000
# Longer sentences than models learn from are translated in pieces of so many subwords.
PIECE = 250


class Translator:
    """A model, or an ensemble, that translates subwords.

    Args:
        checkpoints: paths
        folder: where the dictionaries are
        source, target: languages
        options: beam, lenpen, max_len_a, max_len_b and length_penalty
        max_tokens: source tokens in a batch, padding and all
    """

    def __init__(self, checkpoints, folder, source, target, options, max_tokens=4000, cpu=False):
        config = VaswaniTranslationConfig(
            data=str(folder), source_lang=source, target_lang=target, length_penalty=options.length_penalty
        )
        self.task = VaswaniTranslationTask.setup_task(config)
        self.models, settings = checkpoint_utils.load_model_ensemble([str(path) for path in checkpoints], task=self.task)
        self.device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
        for model in self.models:
            model.to(self.device)
            model.prepare_for_inference_(settings)
        self.generator = self.task.build_generator(self.models, options)
        longest = min(model.max_positions()[0] for model in self.models) - 1
        self.piece = min(PIECE, longest)
        self.max_tokens = max_tokens

    def translate(self, sentences, progress):
        """Translate lists of subwords into strings of subwords, in order; calls `progress` with counts of sentences."""
        pieces = []  # (number of the sentence, number of the piece, token numbers)
        for number, subwords in enumerate(sentences):
            for first in range(0, len(subwords), self.piece):
                pieces.append((number, first, self.numbers(subwords[first : first + self.piece])))
        found = {}
        for batch in self._batches(sorted(pieces, key=lambda piece: piece[2].numel())):
            hypotheses = self.task.inference_step(self.generator, self.models, self._sample(batch))
            for (number, first, _), best in zip(batch, hypotheses):
                found[number, first] = self.task.target_dictionary.string(best[0]["tokens"].cpu())
            progress(sum(first == 0 for _, first, _ in batch))
        texts = [[] for _ in sentences]
        for number, first in sorted(found):
            texts[number].append(found[number, first])
        return [" ".join(parts) for parts in texts]

    def numbers(self, subwords):
        """Token numbers of a source sentence, end token included; names of special entries are unknown words."""
        words = self.task.source_dictionary
        special = {words.bos(), words.pad(), words.eos()}
        numbers = [words.index(subword) for subword in subwords]
        return torch.tensor([words.unk() if n in special else n for n in numbers] + [words.eos()])

    def _batches(self, pieces):
        batch = []
        for piece in pieces:  # shortest first: the newest is the longest
            if batch and (len(batch) + 1) * piece[2].numel() > self.max_tokens:
                yield batch
                batch = []
            batch.append(piece)
        if batch:
            yield batch

    def _sample(self, batch):
        words = self.task.source_dictionary
        tokens = data_utils.collate_tokens(
            [numbers for _, _, numbers in batch], words.pad(), words.eos(), left_pad=True
        ).to(self.device)
        lengths = torch.tensor([numbers.numel() for _, _, numbers in batch], device=self.device)
        return {"id": torch.arange(len(batch)), "net_input": {"src_tokens": tokens, "src_lengths": lengths}}


def decode_lines(stream):
    """Lines of a stream of bytes without their end; only "\\n" ends a line. Invalid UTF-8 becomes U+FFFD, with a warning."""
    for number, line in enumerate(stream, start=1):
        line = line.rstrip(b"\n")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            print(f"line {number}: byte {error.start} is not UTF-8; translated with U+FFFD in its place", file=sys.stderr)
            yield line.decode("utf-8", errors="replace")


def find_settings(args, checkpoints):
    """`(settings, folder of the dictionaries)` from the folder of the checkpoint, its data directory, and the flags.

    Raises ValueError: something is missing.
    """
    checkpoint = load_checkpoint(checkpoints[0])
    if not (checkpoint.get("cfg") or checkpoint.get("args")):
        raise ValueError(f"{checkpoints[0]} is no checkpoint of fairseq: it does not say how its model was built.")
    saved = checkpoint.get("cfg") or {}
    task = saved.get("task") or {}
    folders = [args.data] if args.data else [checkpoints[0].parent, Path(str(task.get("data") or ".").split(":")[0])]
    settings = next((found for found in map(read_settings, folders) if found), None)
    found = (task.get("source_lang"), task.get("target_lang"))
    if not all(found):  # left to fairseq in training, which takes the languages from the names of the files
        found = next((pair for pair in map(data_utils.infer_language_pair, filter(Path.is_dir, folders)) if all(pair)), found)
    source = args.source_lang or (settings.source if settings else found[0])
    target = args.target_lang or (settings.target if settings else found[1])
    if not source or not target:
        raise ValueError(f"{checkpoints[0]} does not say which languages it translates: give --source-lang and --target-lang.")
    codes = args.codes or (settings.codes if settings else next((f / "codes" for f in folders if (f / "codes").is_file()), None))
    if codes is None:
        raise ValueError(
            f"there is no prepare.json and no file codes in {' or '.join(map(str, folders))}: give --codes, the BPE"
            " merges that the training text was cut with."
        )
    for folder in folders:
        if all((folder / f"dict.{language}.txt").is_file() for language in (source, target)):
            break
    else:
        raise ValueError(
            f"there are no dict.{source}.txt and dict.{target}.txt in {' or '.join(map(str, folders))}: give --data,"
            " the directory that fairseq-preprocess made."
        )
    if settings is None:
        return Settings(source, target, Path(codes)), folder
    return Settings(source, target, Path(codes), settings.normalize_source, settings.escape), folder


def main():
    parser = argparse.ArgumentParser(
        description="Translate raw text from standard input to standard output: tokenise, cut into subwords, search as"
        " in Section 6.1, join, detokenise. One line comes out for each line that goes in, in the same order.",
        epilog="example: python scripts/translate.py checkpoints/averaged.pt < source.txt > target.txt",
    )
    parser.add_argument("checkpoint", help="checkpoint, or several with ':' between them as an ensemble")
    parser.add_argument("--data", type=Path, help="folder of dict.*.txt and prepare.json (default: that of the checkpoint, or"
                        " the one that it was trained with)")
    parser.add_argument("--codes", type=Path, help="BPE merges (default: as prepare.json says, or the file codes)")
    parser.add_argument("--source-lang", help="default: as in prepare.json or the checkpoint")
    parser.add_argument("--target-lang", help="default: as in prepare.json or the checkpoint")
    parser.add_argument("--beam", type=int, default=BEAM, help="default: %(default)s")
    parser.add_argument("--lenpen", type=float, default=ALPHA, help="exponent of the length penalty (default: %(default)s)")
    parser.add_argument("--length-penalty", choices=["gnmt", "fairseq"], default="gnmt",
                        help="((5 + n) / 6)^lenpen or n^lenpen for n tokens (default: %(default)s)")
    parser.add_argument("--max-len-a", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument("--max-len-b", type=int, default=EXTRA_LENGTH,
                        help="at most max-len-a x source tokens + this (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=4000, help="source tokens in a batch (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args()
    if args.max_tokens < 1:
        raise ValueError(f"--max-tokens must be at least 1, not {args.max_tokens}.")

    checkpoints = [Path(path) for path in args.checkpoint.split(":")]
    for path in checkpoints[1:]:
        load_checkpoint(path)
    settings, folder = find_settings(args, checkpoints)
    pipeline = TextPipeline(settings)
    translator = Translator(checkpoints, folder, settings.source, settings.target, args, args.max_tokens, args.cpu)
    lines = decode_lines(sys.stdin.buffer)
    with tqdm(unit=" lines", file=sys.stderr, mininterval=1) as bar:
        while block := list(itertools.islice(lines, BLOCK)):
            sentences = [pipeline.subwords(line) for line in block]
            bar.update(sum(not subwords for subwords in sentences))
            for output in translator.translate(sentences, bar.update):
                sys.stdout.buffer.write(pipeline.raw(output).encode("utf-8") + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    run_as_script(main)
