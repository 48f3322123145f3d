"""All heads of all layers, in Python and as files."""

import json
import re
import sys

import attention
import pytest
import torch
from common import run_as_script

from vaswani_plugin.attention_maps import attention_maps

from .helpers import EOS, small_model
from .saved_model import save_model

SOURCE, TARGET = torch.tensor([5, 9, 7, 4, EOS]), torch.tensor([8, 6, EOS])


def test_shapes_rows_and_the_mask():
    model = small_model(encoder_layers=3)
    maps = attention_maps(model, SOURCE, TARGET)
    assert maps.encoder.shape == (3, 4, 5, 5)
    assert maps.decoder.shape == (2, 4, 3, 3)
    assert maps.cross.shape == (2, 4, 3, 5)
    for weights in (maps.encoder, maps.decoder, maps.cross):
        assert torch.allclose(weights.sum(dim=-1), torch.ones_like(weights[..., 0]), atol=1e-12)
    assert maps.decoder.triu(1).eq(0).all() and maps.decoder[..., 0, 0].eq(1).all()


def test_the_first_layer_by_the_equation():
    """softmax(Q K^T / sqrt(d_k)) with matrices taken from the state dictionary, head by head."""
    model = small_model()
    state, d_model, heads = model.state_dict(), 16, 4
    x = model.encoder._embed(SOURCE[None])[0]
    weight = state["encoder.layers.0.self_attention.projection.weight"]
    maps = attention_maps(model, SOURCE, TARGET)
    for head in range(heads):
        rows = slice(4 * head, 4 * head + 4)
        query, key = x @ weight[:d_model][rows].t(), x @ weight[d_model : 2 * d_model][rows].t()
        expected = (query @ key.t() / 4**0.5).softmax(dim=-1)
        assert torch.allclose(maps.encoder[0, head], expected, atol=1e-12)


def test_looking_changes_nothing():
    model = small_model()
    lengths = torch.tensor([5])
    with torch.no_grad():
        before = model(SOURCE[None], lengths, TARGET.roll(1)[None])[0]
        maps = attention_maps(model, SOURCE, TARGET)
        after = model(SOURCE[None], lengths, TARGET.roll(1)[None])[0]
    assert torch.equal(before, after) and torch.equal(before[0], maps.logits)
    assert all(module.seen_weights is None for module in model.modules() if hasattr(module, "seen_weights"))


def test_what_makes_no_sense_is_refused():
    model = small_model()
    for source, target in ((SOURCE[:0], TARGET), (SOURCE, torch.tensor([4, 1])), (SOURCE[None], TARGET)):
        with pytest.raises(ValueError, match="without padding"):
            attention_maps(model, source, target)
    with pytest.raises(ValueError, match="training mode"):
        attention_maps(model.train(), SOURCE, TARGET)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["attention.py", *map(str, arguments)])
    attention.main()


def test_pictures_and_a_page_that_needs_no_other_file(tmp_path, monkeypatch):
    checkpoint = save_model(tmp_path)
    out = tmp_path / "shown"
    run(monkeypatch, checkpoint, "--source", "The quick $x_1$ </script> dog", "--target", "lazy <b> dog.", "--out", out)
    for kind in ("encoder", "decoder", "cross"):
        assert (tmp_path / f"shown-{kind}.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "shown.html").read_text("utf-8")
    assert page.count("</script>") == 1 and not re.search(r"(?:src|href)\s*=", page)
    data = json.loads(re.search(r"const data = (.*);\n", page).group(1))
    weights = torch.tensor(data["maps"]["cross"]["weights"])
    assert weights.shape[:2] == (2, 4)
    assert weights.shape[2:] == (len(data["maps"]["cross"]["queries"]), len(data["maps"]["cross"]["keys"]))
    assert data["maps"]["encoder"]["keys"][-1] == "</s>"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("shown", "."))) == [
        "shown-cross.png", "shown-decoder.png", "shown-encoder.png", "shown.html",
    ]


def test_without_a_target_the_models_own_translation_is_shown(tmp_path, monkeypatch):
    run(monkeypatch, save_model(tmp_path), "--source", "The dog.", "--out", tmp_path / "own")
    assert (tmp_path / "own.html").exists()


def test_empty_sentences_are_named(tmp_path, monkeypatch):
    checkpoint = save_model(tmp_path)
    for arguments in (("--source", " "), ("--source", "a", "--target", "")):
        monkeypatch.setattr(sys, "argv", ["attention.py", str(checkpoint), *arguments, "--out", str(tmp_path / "x")])
        with pytest.raises(SystemExit, match="holds no words"):
            run_as_script(attention.main)
    assert not list(tmp_path.glob("x*"))
