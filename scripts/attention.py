"""Show what all heads of all layers look at for one sentence pair, as Figures 3 to 5 of the paper do."""

import argparse
import json
from pathlib import Path

import matplotlib
import torch
import translate
from common import atomic_path, load_checkpoint, run_as_script
from raw_text import TextPipeline

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from vaswani_plugin.attention_maps import attention_maps  # noqa: E402
from vaswani_plugin.inference import PAPER_SEARCH  # noqa: E402
from vaswani_plugin.transformer import VaswaniModel  # noqa: E402

KINDS = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "encoder-decoder attention",
}

PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Attention</title>
<style>
body { font: 15px sans-serif; margin: 1.5em; color: #222 }
text { font: 15px sans-serif; cursor: default }
label { margin-right: 1em; white-space: nowrap }
</style>
<h1>Attention</h1>
<p>A line is a weight: the word on the left looks at the word on the right; the darker, the more. Point at a word to see
its weights alone. Each colour is a head.</p>
<p><label>attention <select id="kind"></select></label><label>layer <select id="layer"></select></label></p>
<p id="heads"></p>
<div id="picture"></div>
<script>
const data = DATA;
const $ = id => document.getElementById(id), svg = "http://www.w3.org/2000/svg";
const colour = (h, n) => `hsl(${Math.round(360 * h / n)} 75% 42%)`;
for (const k of Object.keys(data.maps)) $("kind").add(new Option(data.maps[k].title, k));
let chosen = null, off = new Set();
function make(name, attributes, text) {
  const e = document.createElementNS(svg, name);
  for (const a in attributes) e.setAttribute(a, attributes[a]);
  if (text !== undefined) e.textContent = text;
  return e;
}
function draw() {
  const map = data.maps[$("kind").value], weights = map.weights[$("layer").value], n = weights.length;
  const left = map.queries, right = map.keys, step = 24, x1 = 260, x2 = 520;
  const s = make("svg", {width: 800, height: step * (Math.max(left.length, right.length) + 1)});
  weights.forEach((rows, h) => {
    if (off.has(h)) return;
    rows.forEach((row, i) => row.forEach((w, j) => {
      if (w < 0.01 || (chosen !== null && chosen !== i)) return;
      s.append(make("line", {x1: x1 + 8, y1: step * (i + .8), x2: x2 - 8, y2: step * (j + .8), stroke: colour(h, n),
        "stroke-width": 3, "stroke-opacity": w}));
    }));
  });
  left.forEach((t, i) => {
    const e = make("text", {x: x1, y: step * (i + 1), "text-anchor": "end"}, t);
    e.onmouseenter = () => { chosen = i; draw(); };
    e.onclick = e.onmouseenter;
    s.append(e);
  });
  right.forEach((t, j) => s.append(make("text", {x: x2, y: step * (j + 1)}, t)));
  s.onmouseleave = () => { chosen = null; draw(); };
  $("picture").replaceChildren(s);
}
function heads() {
  const n = data.maps[$("kind").value].weights[0].length;
  $("heads").replaceChildren(...Array.from({length: n}, (_, h) => {
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox"; box.checked = !off.has(h);
    box.onchange = () => { box.checked ? off.delete(h) : off.add(h); draw(); };
    label.style.color = colour(h, n);
    label.append(box, "head " + (h + 1));
    return label;
  }));
}
function kind() {
  const n = data.maps[$("kind").value].weights.length;
  $("layer").replaceChildren(...Array.from({length: n}, (_, i) => new Option(i + 1, i)));
  $("layer").value = Math.max(0, n - 2);
  chosen = null; heads(); draw();
}
$("kind").onchange = kind;
$("layer").onchange = draw;
kind();
</script>
</html>
"""


def labelled(maps, source, target):
    """For each of the three attentions: weights, and the words that look and are looked at."""
    read = ["<s>", *target[:-1]]  # what the decoder has read where it writes the words of ``target``
    return {
        "encoder": (maps.encoder, source, source),
        "decoder": (maps.decoder, read, read),
        "cross": (maps.cross, read, source),
    }


def page(maps):
    """A page without any other file, of what :func:`labelled` returns."""
    data = {
        "maps": {
            kind: {"title": KINDS[kind], "queries": queries, "keys": keys,
                   "weights": [[[[round(w, 3) for w in row] for row in head] for head in layer] for layer in weights.tolist()]}
            for kind, (weights, queries, keys) in maps.items()
        }
    }
    # "<" would let text of the sentences end the script.
    return PAGE.replace("DATA", json.dumps(data, ensure_ascii=True).replace("<", "\\u003c"), 1)


def picture(weights, queries, keys, title, path):
    """A PNG with one square for each layer (down) and head (across)."""
    layers, heads = weights.shape[:2]
    size = 1.2 + 0.12 * max(len(queries), len(keys))
    figure, axes = plt.subplots(layers, heads, figsize=(heads * size, layers * size), squeeze=False)
    for layer, head in ((layer, head) for layer in range(layers) for head in range(heads)):
        axis = axes[layer][head]
        axis.imshow(weights[layer, head], vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axis.set_xticks(range(len(keys)), keys if layer == layers - 1 else [], rotation=90, fontsize=6, parse_math=False)
        axis.set_yticks(range(len(queries)), queries if head == 0 else [], fontsize=6, parse_math=False)
        axis.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=7)
    figure.suptitle(f"{title}: rows look at columns")
    figure.tight_layout()
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description="Write what all heads of all layers look at for one sentence pair: PREFIX-encoder.png,"
        " PREFIX-decoder.png, PREFIX-cross.png and the page PREFIX.html, which needs no other file.",
        epilog='example: python scripts/attention.py checkpoints/averaged.pt --source "Open the file." --out open',
    )
    parser.add_argument("checkpoint", help="checkpoint of a vaswani2017 model")
    parser.add_argument("--source", required=True, help="sentence in the source language, raw text")
    parser.add_argument("--target", help="sentence in the target language, raw text (default: the model's translation)")
    parser.add_argument("--out", required=True, metavar="PREFIX", help="beginning of the names of the files to write")
    parser.add_argument("--data", type=Path, help="as for translate.py")
    parser.add_argument("--codes", type=Path, help="as for translate.py")
    parser.add_argument("--source-lang", help="as for translate.py")
    parser.add_argument("--target-lang", help="as for translate.py")
    args = parser.parse_args()

    checkpoint = Path(args.checkpoint)
    load_checkpoint(checkpoint)
    settings, folder = translate.find_settings(args, [checkpoint])
    pipeline = TextPipeline(settings)
    source = pipeline.subwords(args.source)
    options = argparse.Namespace(**PAPER_SEARCH, length_penalty="gnmt")
    translator = translate.Translator([checkpoint], folder, settings.source, settings.target, options, cpu=True)
    (model,) = translator.models
    if not isinstance(model, VaswaniModel):
        raise ValueError(f"{checkpoint} holds a {type(model).__name__}; attention of all heads is shown for vaswani2017 models.")
    if args.target is None:
        target = translator.translate([source], lambda count: None)[0].split()
    else:
        target = pipeline.target_subwords(args.target)
    limits = model.max_positions()
    for name, words, limit in (("source", source, limits[0]), ("target", target, limits[1])):
        if not words:
            raise ValueError(f"the {name} sentence holds no words.")
        if len(words) >= limit:
            raise ValueError(f"the {name} sentence has {len(words)} subwords; at most {limit - 1} fit the model.")
    words = translator.task.target_dictionary
    numbers = torch.tensor([words.index(word) for word in target] + [words.eos()])
    maps = labelled(
        attention_maps(model, translator.numbers(source), numbers), [*source, "</s>"], [*target, "</s>"]
    )
    for kind, (weights, queries, keys) in maps.items():
        with atomic_path(f"{args.out}-{kind}.png") as temporary:
            picture(weights, queries, keys, KINDS[kind], temporary)
    with atomic_path(f"{args.out}.html") as temporary:
        temporary.write_text(page(maps), "utf-8")
    print(" ".join(f"{args.out}{end}" for end in ("-encoder.png", "-decoder.png", "-cross.png", ".html")))


if __name__ == "__main__":
    run_as_script(main)
