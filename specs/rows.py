"""The paper's models by name: Table 3, the big models of Section 6.1, the parser of Section 6.3."""

import dataclasses

from specs.subject import Sizes

BASE = Sizes()
ROWS = {
    "base": {},
    "a-h1": {"heads": 1, "d_k": 512, "d_v": 512},
    "a-h4": {"heads": 4, "d_k": 128, "d_v": 128},
    "a-h16": {"heads": 16, "d_k": 32, "d_v": 32},
    "a-h32": {"heads": 32, "d_k": 16, "d_v": 16},
    "b-dk16": {"d_k": 16},
    "b-dk32": {"d_k": 32},
    "c-n2": {"layers": 2},
    "c-n4": {"layers": 4},
    "c-n8": {"layers": 8},
    "c-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "c-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "c-ff1024": {"d_ff": 1024},
    "c-ff4096": {"d_ff": 4096},
    "d-drop0": {"dropout": 0.0},
    "d-drop2": {"dropout": 0.2},
    "d-ls0": {},
    "d-ls2": {},
    "e-learned": {"learned_positions": True},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
}
BIG = {**ROWS["big"]}
OTHERS = {"big-en-fr": {**BIG, "dropout": 0.1}, "parsing": {"layers": 4, "d_model": 1024, "d_k": 128, "d_v": 128}}

# A printed count is missing for rows whose size is the base model's.
PRINTED = [name for name in ROWS if name[0] not in "ade"]


def sizes(name, vocabulary=37000):
    """The paper's sizes of a named model."""
    return dataclasses.replace(BASE, vocabulary=vocabulary, **{**ROWS, **OTHERS}[name])


# Small enough to judge in milliseconds; no two sizes are equal, so that none can stand for another.
SMALL = Sizes(vocabulary=23, layers=2, d_model=16, d_ff=40, heads=4, d_k=4, d_v=4, dropout=0.1)
