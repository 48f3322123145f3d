"""Score translations in the two ways that people mix up, side by side, and say which is which."""

import argparse
import re
import sys
from pathlib import Path

from common import read_lines, run_as_script
from sacrebleu.metrics import BLEU, CHRF
from sacremoses import MosesTokenizer

# The authors' script (tensor2tensor, get_ende_bleu.sh): a hyphen between two characters that are not spaces becomes a
# token of its own. Matches do not overlap, as with perl's s///g: a-b-c becomes a ##AT##-##AT## b-c.
COMPOUND = re.compile(r"(\S)-(\S)")


def split_compounds(text):
    """``text`` with compounds split as the authors' script does."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", text)


def tokenised_bleu(outputs, references):
    """BLEU as multi-bleu.perl counts it, of lines whose tokens stand between spaces; up to 4-grams, no smoothing."""
    return BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(outputs, [references]).score


def paper_bleu(outputs, references, language):
    """The paper's measure: tokenised by Moses, compounds split, counted as multi-bleu.perl does."""
    tokenizer = MosesTokenizer(language)

    def prepare(line):
        return split_compounds(tokenizer.tokenize(line, return_str=True))

    return tokenised_bleu([prepare(line) for line in outputs], [prepare(line) for line in references])


def warnings(lines, name):
    """Sentences on what makes scores of these lines meaningless; none if nothing was found."""
    count = len(lines)
    with_bpe = sum("@@ " in line or line.endswith("@@") for line in lines)
    # Detokenised text hardly ever has a space before a full stop or comma at the end of a clause.
    tokenised = sum(bool(re.search(r"\S [.,;:!?](?: |$)", line)) for line in lines)
    entities = sum(bool(re.search(r"&(?:apos|quot|amp|lt|gt|#\d+);", line)) for line in lines)
    found = []
    if with_bpe:
        found.append(f"{with_bpe} of {count} lines of {name} hold BPE marks (@@): join the subwords first.")
    if tokenised > 0.2 * count:
        found.append(f"{tokenised} of {count} lines of {name} look tokenised (a space before a full stop or comma): detokenise first.")
    if entities:
        found.append(f"{entities} of {count} lines of {name} hold entities such as &apos; or &quot;: detokenise first.")
    return found


def report(outputs, references, language, samples, seed=12345):
    """The scores as text.

    Args:
        outputs, references: lines of detokenised text
        language: of both, for the tokeniser
        samples: how often the lines are drawn anew for the 95% interval; 0 for none
    """
    lines = []
    for name, metric in (("sacreBLEU", BLEU()), ("chrF", CHRF())):
        if samples:
            result = metric.corpus_score(outputs, [references], n_bootstrap=samples)
            interval = f" +- {result._ci:.2f} (95%, {samples} bootstrap samples)"
        else:
            result, interval = metric.corpus_score(outputs, [references]), ""
        lines.append(f"{name:<12}{result.score:6.2f}{interval}")
        lines.append(f"            detokenised text; compare it with other sacreBLEU scores of this signature: {metric.get_signature()}"
                     if name == "sacreBLEU" else f"            detokenised text; signature: {metric.get_signature()}")
    lines.append(f"paper BLEU  {paper_bleu(outputs, references, language):6.2f}")
    lines.append(f"            tokenised ({language}), compounds split; compare it with Tables 2 and 3 of the paper,"
                 " and with no sacreBLEU")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description="Print sacreBLEU and chrF of detokenised translations, with their signatures and bootstrap intervals, and"
        " the paper's measure: tokenised BLEU with compounds split, as the authors' script computes it.",
        epilog="example: python scripts/score.py target.txt --reference test.de --lang de",
    )
    parser.add_argument("output", type=Path, help="translations as translate.py writes them: detokenised, one a line")
    parser.add_argument("--reference", type=Path, required=True, help="the untouched file of references, one a line")
    parser.add_argument("--lang", required=True, help="their language, such as de")
    parser.add_argument("--samples", type=int, default=1000, help="bootstrap samples, 0 for none (default: %(default)s)")
    args = parser.parse_args()
    if args.samples < 0:
        raise ValueError(f"--samples must not be negative, and is {args.samples}.")
    outputs, references = read_lines(args.output), read_lines(args.reference)
    if len(outputs) != len(references):
        raise ValueError(
            f"{args.output} has {len(outputs)} lines and {args.reference} has {len(references)}: they are not translations"
            " of the same text."
        )
    if not outputs:
        raise ValueError(f"{args.output} is empty.")
    for sentence in warnings(outputs, args.output) + warnings(references, args.reference):
        print(f"warning: {sentence}", file=sys.stderr)
    print(report(outputs, references, args.lang, args.samples))


if __name__ == "__main__":
    run_as_script(main)
