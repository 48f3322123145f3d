"""What the quick start shows at its end: sacreBLEU with its signature, and examples."""

import argparse
import json
from pathlib import Path

from sacrebleu.metrics import BLEU

from common import atomic_path, read_lines, run_as_script


def select(lines, numbers):
    """The lines with these numbers, counted from 1."""
    return [lines[number - 1] for number in numbers]


def score(output, reference):
    """`(BLEU, signature)` of detokenised output against one untouched reference."""
    metric = BLEU()
    return metric.corpus_score(output, [reference]).score, str(metric.get_signature())


def spread(numbers, count):
    """`count` of the numbers, evenly spread, first and last included as far as there are so many."""
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[round(i * (len(numbers) - 1) / (count - 1))] for i in range(count)]


def report(source, reference, output, new, manifest):
    """The report as text; `new` has the numbers of the test lines without near-duplicates in training."""
    lines = [f"corpus: {manifest['corpus']}"]
    bleu, signature = score(output, reference)
    lines += ["", f"BLEU {bleu:.1f} on all {len(output)} test sentences"]
    if new:
        bleu, _ = score(select(output, new), select(reference, new))
        lines.append(f"BLEU {bleu:.1f} on the {len(new)} of them without a near-duplicate in the training text")
    share = 1 - len(new) / len(output)
    lines.append(f"     ({share:.0%} have one: a training sentence that shares at least 0.6 of all words of the two)")
    lines += [f"sacreBLEU signature: {signature}", ""]
    for number in spread(new or range(1, len(output) + 1), 10):
        triple = (source, reference, output)
        lines += [f"{name:9}  {text[number - 1]}" for name, text in zip(("source", "reference", "output"), triple)]
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description="Print sacreBLEU of translations, on all test lines and on those without near-duplicates in the "
        "training text, with ten examples out of the latter.",
        epilog="example: python scripts/quickstart_report.py test.en test.de output.de --new-lines new-lines "
        "--manifest manifest.json --out report.txt",
    )
    parser.add_argument("source", help="source text of the test")
    parser.add_argument("reference", help="its translation by people")
    parser.add_argument("output", help="its translation by the model, detokenised, in the same order")
    parser.add_argument("--new-lines", required=True, help="line numbers that near_duplicates.py wrote")
    parser.add_argument("--manifest", required=True, help="manifest.json of the corpus")
    parser.add_argument("--out", required=True, help="text file to write the same to")
    args = parser.parse_args()
    texts = [read_lines(path) for path in (args.source, args.reference, args.output)]
    if len(set(map(len, texts))) != 1:
        raise ValueError(f"{args.source}, {args.reference} and {args.output} differ in their number of lines.")
    if not texts[0]:
        raise ValueError(f"{args.source} is empty.")
    numbers = read_lines(args.new_lines)
    if not all(number.isdecimal() for number in numbers):
        raise ValueError(f"{args.new_lines} holds something else than line numbers.")
    try:
        manifest = json.loads(Path(args.manifest).read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{args.manifest} is no JSON text: {error}.") from None
    text = report(*texts, [int(number) for number in numbers], manifest)
    with atomic_path(args.out) as temporary:
        temporary.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    run_as_script(main)
