"""Weights that cross to other libraries and back: compared with what their own code computes."""

import argparse
import importlib.util
import math
import sys
from types import SimpleNamespace

import fairseq.utils
import pytest
import torch
import weight_formats as formats
from fairseq.models.transformer import TransformerModel, base_architecture
from torch import nn

from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.positions import sinusoids
from vaswani_plugin.transformer import VaswaniModel

from .helpers import PAD, PLUGIN, REPOSITORY, SMALL, dictionary, padded, run, sentences, small_model, succeed
from .saved_model import save_model

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
WORDS = dictionary()
# What a model needs so that every other library can be it.
COMMON = {"attention_bias": True, "layer_norm_eps": 1e-5, "max_source_positions": 40, "max_target_positions": 30}


def batch(side="left"):
    """Sources of unequal length, padded on ``side``, and shifted targets, as fairseq makes them."""
    source = padded([row + [2] for row in sentences(1, (3, 9, 6))], side)
    target = padded([[2] + row for row in sentences(2, (7, 2, 8))])
    return source, target


def configuration(**changes):
    return VaswaniConfig(**{**SMALL, **COMMON, **changes})


def ours(config, dtype, seed=3):
    """A model of this plugin with random weights, biases and norms."""
    settings = {name: getattr(config, name) for name in (*SMALL, *COMMON, "learned_positions", "share_all_embeddings")}
    return small_model(seed, **settings).to(dtype)


def stock(dtype=torch.float64, seed=5, **options):
    """fairseq's own transformer with random weights, biases and norms, and its options."""
    options = argparse.Namespace(**{
        "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_source_positions": 40,
        "max_target_positions": 30, "share_all_embeddings": True, **options,
    })
    base_architecture(options)
    torch.manual_seed(seed)
    model = TransformerModel.build_model(options, SimpleNamespace(source_dictionary=WORDS, target_dictionary=WORDS))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype).eval(), options


def logits_of(model, source, target):
    with torch.no_grad():
        return model(source, source.ne(PAD).sum(1), target)[0]


def assert_same(one, other, target):
    """Logits agree at all tokens that are not padding."""
    real = target.ne(PAD)
    assert one.dtype == other.dtype
    assert (one - other)[real].abs().max() < TOLERANCE[one.dtype]


def vaswani_from(config, state, dtype):
    model = VaswaniModel.from_config(config, WORDS).to(dtype).eval()
    model.load_state_dict(dict(state))
    return model


@pytest.fixture(autouse=True)
def softmax_in_the_type_of_its_scores(monkeypatch):
    """fairseq rounds the softmax of its encoder-decoder attention to float32, whatever the type of the model.

    In float64 that alone moves logits by 1e-7 and would hide what these tests look for.
    """
    monkeypatch.setattr(fairseq.utils, "softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))


# ---- fairseq ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", [
    {},
    {"encoder_learned_pos": True, "decoder_learned_pos": True},
    {"encoder_learned_pos": True},
    {"no_token_positional_embeddings": True},
    {"share_all_embeddings": False},
    {"share_all_embeddings": False, "share_decoder_input_output_embed": True, "decoder_layers": 1},
], ids=lambda options: ",".join(options) or "plain")
def test_from_fairseq(options, dtype):
    model, options = stock(dtype, **options)
    config, state = formats.from_fairseq(options, model.state_dict())
    source, target = batch()
    converted = vaswani_from(config, state, dtype)
    assert_same(logits_of(converted, source, target), logits_of(model, source, target), target)


def test_fairseq_there_and_back():
    model, options = stock()
    options_again, state = formats.to_fairseq(*formats.from_fairseq(options, model.state_dict()))
    assert state.keys() == model.state_dict().keys()  # sinusoids come back as sinusoids, which have no weights
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert not options_again["encoder_learned_pos"]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("changes", [
    {}, {"attention_bias": False}, {"learned_positions": True}, {"share_all_embeddings": False}, {"decoder_layers": 3},
], ids=lambda changes: ",".join(changes) or "common")
def test_to_fairseq_and_back(changes, dtype):
    config = configuration(**changes)
    model = ours(config, dtype)
    options, state = formats.to_fairseq(config, model.state_dict())
    theirs, _ = stock(dtype, **options)
    theirs.load_state_dict(dict(state))
    source, target = batch()
    assert_same(logits_of(theirs, source, target), logits_of(model, source, target), target)

    again, state_again = formats.from_fairseq(options, state)
    assert again == config
    assert state_again.keys() == model.state_dict().keys()
    assert all(torch.equal(state_again[name], tensor) for name, tensor in model.state_dict().items())


def test_the_two_tables_of_sinusoids_are_no_permutation_of_each_other():
    """Why a model crosses with a learned table: no column of fairseq's table is one of the paper's.

    The nearest two, of the longest wavelengths, differ by 6e-5 within 50 positions.
    """
    theirs = formats.fairseq_sinusoids(50, torch.zeros(1, 16, dtype=torch.float64))
    paper = sinusoids(50, 16, torch.float64)
    nearest = torch.cdist(theirs.t(), paper.t(), p=torch.inf).min(dim=1).values
    assert nearest.min() > 1e-5


@pytest.mark.parametrize("options, says", [
    ({"encoder_normalize_before": True}, "encoder_normalize_before = True"),
    ({"activation_fn": "gelu"}, "activation_fn = gelu"),
    ({"no_scale_embedding": True}, "no_scale_embedding = True"),
    ({"layernorm_embedding": True}, "layernorm_embedding = True"),
    ({"decoder_ffn_embed_dim": 32}, "decoder_ffn_embed_dim = 32; the paper's model has 24"),
    ({"decoder_attention_heads": 2}, "decoder_attention_heads = 2; the paper's model has 4"),
])
def test_fairseq_models_that_are_not_the_papers(options, says):
    model, options = stock(**options)
    with pytest.raises(ValueError, match=says):
        formats.from_fairseq(options, model.state_dict())


def test_weights_without_a_place_are_not_dropped():
    model, options = stock()
    with pytest.raises(ValueError, match="encoder.layer_norm.weight .* has no counterpart"):
        formats.from_fairseq(options, {**model.state_dict(), "encoder.layer_norm.weight": torch.ones(16)})
    state = {name: tensor for name, tensor in model.state_dict().items() if "layers.1.fc1" not in name}
    with pytest.raises(ValueError, match="lack encoder.layers.1.fc1.weight"):
        formats.from_fairseq(options, state)


@pytest.mark.parametrize("library", ["fairseq", "torch", "marian"])
@pytest.mark.parametrize("changes, says, libraries", [
    ({"layer_norm_eps": 1e-6}, "train with --layer-norm-eps 1e-05", {"fairseq", "marian"}),
    ({"attention_key_dim": 8}, "--attention-key-dim 8 and --attention-value-dim 4", {"fairseq", "torch", "marian"}),
    ({"learned_positions": True}, "positions of Marian are always sinusoids", {"marian"}),
    ({"share_all_embeddings": False}, "--no-share-all-embeddings", {"marian"}),
])
def test_our_models_that_the_others_cannot_be(changes, says, libraries, library):
    config = configuration(**changes)
    state = VaswaniModel.from_config(config, WORDS).state_dict()
    convert = getattr(formats, f"to_{library}")
    if library not in libraries:
        convert(config, state)
        return
    with pytest.raises(ValueError, match=says):
        convert(config, state)


# ---- torch --------------------------------------------------------------------------------------------------------------
def torch_model(saved, dtype):
    model = nn.Transformer(**saved["settings"], batch_first=True).to(dtype).eval()
    model.encoder.norm = model.decoder.norm = nn.Identity()
    model.load_state_dict(saved["transformer"])
    return model


def torch_logits(model, saved, source, target):
    """The embedded input and the output by the equations, the stacks by torch."""
    scale = math.sqrt(model.d_model)
    is_padding = source.eq(PAD)
    causal = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
    with torch.no_grad():
        x = model(
            scale * saved["source_embedding"][source] + saved["source_positions"][: source.size(1)],
            scale * saved["target_embedding"][target] + saved["target_positions"][: target.size(1)],
            tgt_mask=causal, src_key_padding_mask=is_padding, memory_key_padding_mask=is_padding,
        )
        return x @ saved["output"].t()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("changes", [
    {}, {"attention_bias": False, "layer_norm_eps": 1e-6}, {"learned_positions": True}, {"share_all_embeddings": False},
], ids=lambda changes: ",".join(changes) or "common")
def test_to_torch_and_back(changes, dtype):
    config = configuration(**changes)
    model = ours(config, dtype)
    saved = formats.to_torch(config, model.state_dict())
    source, target = batch(side="right")  # positions are counted from the first column
    theirs = torch_model(saved, dtype)
    assert_same(torch_logits(theirs, saved, source, target), logits_of(model, source, target), target)

    again, state = formats.from_torch(saved)
    assert again == config
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_from_a_torch_model(dtype):
    torch.manual_seed(7)
    settings = {"d_model": 16, "nhead": 2, "num_encoder_layers": 1, "num_decoder_layers": 3, "dim_feedforward": 20,
                "dropout": 0.2}
    theirs = nn.Transformer(**settings, batch_first=True).to(dtype).eval()
    theirs.encoder.norm = theirs.decoder.norm = None
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    matrix, table = torch.randn(len(WORDS), 16, dtype=dtype), torch.randn(12, 16, dtype=dtype)
    saved = {
        "settings": settings, "transformer": theirs.state_dict(), "source_embedding": matrix, "target_embedding": matrix,
        "output": matrix, "source_positions": table, "target_positions": table,
    }
    config, state = formats.from_torch(saved)
    assert config.learned_positions and config.share_all_embeddings and config.dropout == 0.2
    source, target = batch(side="right")
    converted = vaswani_from(config, state, dtype)
    assert_same(logits_of(converted, source, target), torch_logits(theirs, saved, source, target), target)


def test_torch_models_that_are_not_the_papers():
    saved = formats.to_torch(configuration(), ours(configuration(), torch.float32).state_dict())
    with_norm = {**saved, "transformer": {**saved["transformer"], "encoder.norm.weight": torch.ones(16)}}
    with pytest.raises(ValueError, match="model.encoder.norm = model.decoder.norm = None"):
        formats.from_torch(with_norm)
    with pytest.raises(ValueError, match="norm_first = True"):
        formats.from_torch({**saved, "settings": {**saved["settings"], "norm_first": True}})
    del saved["output"]
    with pytest.raises(ValueError, match="lacks output"):
        formats.from_torch(saved)


# ---- Marian ---------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def transformers():
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    import convert

    return convert.import_transformers()


def marian_logits(model, source, target):
    with torch.no_grad():
        return model(input_ids=source, attention_mask=source.ne(PAD).long(), decoder_input_ids=target).logits


def with_exact_table(model):
    """Marian rounds its sinusoids to float32; in float64 its own formula is put in their place, unrounded."""
    for stack in (model.model.encoder, model.model.decoder):
        rows, columns = stack.embed_positions.weight.shape
        position = torch.arange(rows, dtype=torch.float64)[:, None]
        angle = position / 10000 ** (torch.arange(0, columns, 2, dtype=torch.float64) / columns)
        table = torch.cat([angle.sin(), angle.cos()], dim=1)
        assert (stack.embed_positions.weight - table).abs().max() < 1e-7
        stack.embed_positions.weight.data = table
    return model


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
def test_to_marian_and_back(transformers, dtype, bias):
    config = configuration(attention_bias=bias, max_target_positions=40)
    model = ours(config, dtype)
    settings, state = formats.to_marian(config, model.state_dict())
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**settings)).to(dtype).eval()
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected and all("embed_positions" in name for name in missing)
    if dtype == torch.float64:
        with_exact_table(theirs)
    source, target = batch(side="right")
    assert_same(marian_logits(theirs, source, target), logits_of(model, source, target), target)

    again, state_again = formats.from_marian(theirs.config.to_dict(), theirs.state_dict())
    assert again == config
    assert state_again.keys() == model.state_dict().keys()
    assert all(torch.equal(state_again[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_from_a_marian_model(transformers, dtype):
    torch.manual_seed(9)
    settings = transformers.MarianConfig(
        vocab_size=len(WORDS), d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20, activation_function="relu", scale_embedding=True,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2, init_std=0.3,
    )
    theirs = transformers.MarianMTModel(settings).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    if dtype == torch.float64:
        with_exact_table(theirs)
    config, state = formats.from_marian(theirs.config.to_dict(), theirs.state_dict())
    assert config.attention_bias and not config.learned_positions
    source, target = batch(side="right")
    converted = vaswani_from(config, state, dtype)
    assert_same(logits_of(converted, source, target), marian_logits(theirs, source, target), target)


def test_marian_models_that_are_not_the_papers():
    settings, state = formats.to_marian(configuration(), ours(configuration(), torch.float32).state_dict())
    with pytest.raises(ValueError, match="activation_function = swish"):
        formats.from_marian({**settings, "activation_function": "swish"}, state)
    with pytest.raises(ValueError, match="final_logits_bias"):
        formats.from_marian(settings, {**state, "final_logits_bias": torch.ones(1, 24)})
    with pytest.raises(ValueError, match="decoder_start_token_id = 1; .* has 2"):
        formats.from_marian({**settings, "decoder_start_token_id": 1}, state)


# ---- the command -----------------------------------------------------------------------------------------------------------
def convert_script(*arguments):
    return run("python", REPOSITORY / "scripts" / "convert.py", *arguments)


@pytest.fixture
def convert_here(monkeypatch, capsys):
    """The command in this process: what it prints."""
    import convert

    def call(model, out, library):
        monkeypatch.setattr(sys, "argv", ["convert.py", str(model), str(out), "--to", library])
        convert.main()
        return capsys.readouterr().out

    return call


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of this plugin that every library can be."""
    path = save_model(tmp_path, seed=4)
    saved = torch.load(path, weights_only=True)
    saved["cfg"]["model"].update(layer_norm_eps=1e-5)
    torch.save(saved, path)
    return path


def assert_same_model(path, other):
    again, saved = (torch.load(file, weights_only=True) for file in (path, other))
    assert again["cfg"]["model"] == {**saved["cfg"]["model"], "_name": "vaswani"}
    assert again["model"].keys() == saved["model"].keys()
    assert all(torch.equal(tensor, saved["model"][name]) for name, tensor in again["model"].items())


def test_convert_by_files(checkpoint, tmp_path, convert_here):
    for source, name, library in [
        ("model.pt", "stock.pt", "fairseq"), ("stock.pt", "again.pt", "vaswani"), ("stock.pt", "torch.pt", "torch"),
        ("torch.pt", "from_torch.pt", "vaswani"),
    ]:
        says = convert_here(tmp_path / source, tmp_path / name, library)
        assert f"model {tmp_path / source} for {library}" in says and "differ by" in says
    for name in ("again.pt", "from_torch.pt"):
        assert_same_model(tmp_path / name, checkpoint)
    assert torch.load(tmp_path / "stock.pt", weights_only=True)["cfg"]["task"]["_name"] == "translation"


def test_convert_marian_by_files(transformers, checkpoint, tmp_path, convert_here):
    convert_here(checkpoint, tmp_path / "marian", "marian")
    # What a user of that library does with it.
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "marian")
    assert model.generate(torch.tensor([[5, 6, 2]]), max_new_tokens=3, num_beams=1)[0, 0] == 2
    convert_here(tmp_path / "marian", tmp_path / "again.pt", "vaswani")
    assert_same_model(tmp_path / "again.pt", checkpoint)


@pytest.mark.slow
def test_a_trained_stock_model_translates_the_same_in_both(data_bin, tmp_path):
    """fairseq-train and fairseq-generate without the plugin, then here, and once more without it after the way back."""
    succeed(
        "fairseq-train", data_bin, "--arch", "transformer", "--encoder-embed-dim", 16, "--decoder-embed-dim", 16,
        "--encoder-layers", 1, "--decoder-layers", 2, "--encoder-ffn-embed-dim", 24, "--decoder-ffn-embed-dim", 24,
        "--encoder-attention-heads", 2, "--decoder-attention-heads", 2, "--share-all-embeddings", "--optimizer", "adam",
        "--lr", 0.01, "--max-tokens", 500, "--max-update", 20, "--save-dir", tmp_path, "--cpu", "--user-dir", PLUGIN,
    )
    stock_model, here, back = tmp_path / "checkpoint_last.pt", tmp_path / "here.pt", tmp_path / "back.pt"
    for source, out, library in ((stock_model, here, "vaswani"), (here, back, "fairseq")):
        done = convert_script(source, out, "--to", library)
        assert done.returncode == 0, done.stdout + done.stderr

    def translations(path, *flags):
        output = succeed("fairseq-generate", data_bin, "--path", path, "--beam", 1, "--max-len-b", 10, "--batch-size", 8,
                         "--required-batch-size-multiple", 1, "--cpu", *flags)
        return sorted(line.split("\t")[2] for line in output.splitlines() if line.startswith("H-"))

    with_plugin = ["--user-dir", PLUGIN, "--task", "translation"]
    found = translations(stock_model, *with_plugin)
    assert len(found) == 20 and len(set(found)) > 1
    assert translations(here, *with_plugin) == found
    assert translations(back) == found  # and fairseq alone can read it


def test_bad_input_is_one_sentence_and_nothing_is_written(tmp_path):
    checkpoint = save_model(tmp_path)
    for arguments, says in [
        ([checkpoint, tmp_path / "out.pt", "--to", "fairseq"], "train with --layer-norm-eps 1e-05"),
        ([tmp_path / "none.pt", tmp_path / "out.pt", "--to", "fairseq"], "neither a checkpoint nor a folder"),
        ([checkpoint, checkpoint, "--to", "torch"], "exists"),
    ]:
        done = convert_script(*arguments)
        assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codes", "dict.de.txt", "dict.en.txt", "model.pt",
                                                                "prepare.json"]
