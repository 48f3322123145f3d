"""Write specs/vectors/*.json: values of the paper's equations for implementations in other languages.

Example: python scripts/spec_vectors.py
"""

import argparse
import json
import pathlib
import sys

import torch
from common import run_as_script

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specs import reference, rows  # noqa: E402
from specs.report import write  # noqa: E402

VECTORS = ROOT / "specs" / "vectors"


def learning_rate():
    steps = [1, 2, 10, 100, 1000, 3999, 4000, 4001, 16_000, 100_000, 300_000]
    return {
        "what": "Eq. 3 with 4000 warm-up steps: rate of the update with this number, counted from 1",
        "cases": [
            {"d_model": d, "step": step, "rate": reference.learning_rate(step, d)} for d in (256, 512, 1024) for step in steps
        ],
    }


def positions():
    return {
        "what": "Section 3.5: rows of the position table, the first position being 0",
        "cases": [
            {"d_model": d, "position": pos, "encoding": reference.positions(1, d, first=pos)[0].tolist()}
            for d in (4, 16, 512) for pos in (0, 1, 2, 100, 1023, 5000)
        ],
    }  # fmt: skip


def attention():
    query = [[1.0, 0.0, 0.5, -1.0], [0.0, 2.0, 0.0, 0.0], [-1.0, 1.0, 1.0, 0.25]]
    key = [[0.5, 0.5, 0.0, 0.0], [1.0, -1.0, 0.0, 2.0], [0.0, 1.0, 1.0, 1.0]]
    value = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 10.0]]
    q, k, v = (torch.tensor(x, dtype=torch.float64) for x in (query, key, value))
    causal = torch.ones(3, 3).bool().tril()
    return {
        "what": "Eq. 1 for one head, d_k 4, d_v 3; allowed[i][j]: query i may see key j",
        "cases": [
            {"query": query, "key": key, "value": value, "allowed": None if mask is None else mask.tolist(),
             "weights": reference.attention_weights(q, k, mask).tolist(), "output": reference.attention(q, k, v, mask).tolist()}
            for mask in (None, causal)
        ],
    }  # fmt: skip


def label_smoothing():
    logits = [[2.0, -1.0, 0.5, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0], [-3.0, 4.0, 1.0, 0.0, 2.5]]
    return {
        "what": "Section 5.4: loss in nats of one row of logits against the smoothed target, over all classes",
        "cases": [
            {"logits": row, "gold": gold, "epsilon": eps, "target": reference.smoothed_target(len(row), gold, eps),
             "loss": reference.smoothed_loss(row, gold, eps)}
            for row in logits for gold in (0, 3) for eps in (0.0, 0.1, 0.2)
        ],
    }  # fmt: skip


def length_penalty():
    return {
        "what": "Section 6.1: ((5 + length) / 6)^alpha, by which log P is divided; the length counts the end symbol",
        "cases": [
            {"length": n, "alpha": alpha, "penalty": reference.length_penalty(n, alpha)}
            for n in (1, 5, 10, 20, 40, 100) for alpha in (0.0, 0.3, 0.6, 1.0)
        ],
    }  # fmt: skip


def adam():
    gradients = [0.3, -1.2, 0.7, 2.0]
    return {
        "what": "Section 5.3: a scalar from 0 with step size 1; epsilon_hat: the cited paper's second form",
        "cases": [
            {"gradients": gs, "betas": [0.9, 0.98], "epsilon": 1e-9, "epsilon_hat": hat,
             "values": reference.adam(gs, (0.9, 0.98), 1e-9, hat)}
            for gs in (gradients, [1e-8, -3e-8]) for hat in (False, True)
        ],
    }  # fmt: skip


def parameter_counts():
    return {
        "what": "Table 3: trained scalars with one embedding matrix, sinusoids unless learned (1024 rows for each stack)",
        "cases": [
            {"row": name, **vars(rows.sizes(name, vocabulary)), "attention_bias": bias,
             "parameters": reference.parameter_count(rows.sizes(name, vocabulary), bias, max_positions=1024)}
            for name in rows.ROWS for vocabulary in (32_000, 37_000, 40_960) for bias in (False, True)
        ],
    }  # fmt: skip


def shapes():
    b, s, t, d, f, h, v = 32, 40, 50, 512, 2048, 8, 37_000
    return {
        "what": "One base encoder and decoder layer: batch 32, source 40, target 50",
        "cases": [
            {"name": name, "shape": shape} for name, shape in [
                ("embedded source", [b, s, d]), ("queries of a head", [b, h, s, d // h]), ("encoder scores", [b, h, s, s]),
                ("encoder attention output", [b, s, d]), ("encoder feed-forward inner", [b, s, f]), ("encoder output", [b, s, d]),
                ("embedded target", [b, t, d]), ("decoder scores", [b, h, t, t]), ("cross scores", [b, h, t, s]),
                ("decoder feed-forward inner", [b, t, f]), ("decoder output", [b, t, d]), ("logits", [b, t, v]),
            ]
        ],
    }  # fmt: skip


FILES = [learning_rate, positions, attention, label_smoothing, length_penalty, adam, parameter_counts, shapes]


def text(function):
    """The file's content: one case a line."""
    data = function()
    cases = ",\n".join("  " + json.dumps(case) for case in data["cases"])
    return f'{{\n "what": {json.dumps(data["what"])},\n "cases": [\n{cases}\n ]\n}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=VECTORS, help="folder to write to")
    output = parser.parse_args().output
    for function in FILES:
        write(output / f"{function.__name__}.json", text(function))
        print(output / f"{function.__name__}.json")


if __name__ == "__main__":
    run_as_script(main)
