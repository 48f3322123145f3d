"""The values for other languages are what the script writes, and a few of them are known by hand."""

import importlib.util
import json
import math
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("spec_vectors", ROOT / "scripts" / "spec_vectors.py")
spec_vectors = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(spec_vectors)


def cases(name):
    return json.loads((spec_vectors.VECTORS / f"{name}.json").read_text(encoding="utf-8"))["cases"]


def agree(a, b):
    """Equal but for the last digits of floating-point numbers, which differ between machines."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(agree(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(agree, a, b))
    return a == pytest.approx(b, rel=1e-12, abs=1e-14) if isinstance(a, float) else a == b


@pytest.mark.parametrize("function", spec_vectors.FILES, ids=lambda f: f.__name__)
def test_vectors_are_up_to_date(function):
    written = (spec_vectors.VECTORS / f"{function.__name__}.json").read_text(encoding="utf-8")
    assert agree(json.loads(written), json.loads(spec_vectors.text(function)))


def test_no_other_file_lies_there():
    names = {path.name for path in spec_vectors.VECTORS.iterdir()}
    assert names == {f"{function.__name__}.json" for function in spec_vectors.FILES}


def test_values_known_by_hand():
    rate = {(c["d_model"], c["step"]): c["rate"] for c in cases("learning_rate")}
    assert rate[512, 1] == pytest.approx(1.746928107e-7, rel=1e-9) and rate[1024, 4000] == pytest.approx(4.941059e-4, rel=1e-6)
    zero = next(c for c in cases("positions") if c["d_model"] == 4 and c["position"] == 0)
    assert zero["encoding"] == [0.0, 1.0, 0.0, 1.0]
    one = next(c for c in cases("positions") if c["d_model"] == 4 and c["position"] == 1)
    assert one["encoding"] == pytest.approx([math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)], abs=1e-15)
    uniform = next(c for c in cases("label_smoothing") if c["logits"] == [0.0] * 5 and c["epsilon"] == 0.1)
    assert uniform["loss"] == pytest.approx(math.log(5)) and uniform["target"][uniform["gold"]] == pytest.approx(0.92)
    counts = {(c["row"], c["vocabulary"], c["attention_bias"]): c["parameters"] for c in cases("parameter_counts")}
    assert counts["base", 37_000, False] == 63_045_632 and counts["big", 37_000, True] == 214_245_376
    masked = cases("attention")[1]
    assert masked["weights"][0] == [1.0, 0.0, 0.0] and masked["output"][0] == masked["value"][0]
