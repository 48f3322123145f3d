"""The whole model against the paper's equations, in training and step by step."""

import random

import pytest
import torch

from vaswani_plugin.cache import DecoderCache
from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.errors import UserError
from vaswani_plugin.transformer import VaswaniModel

from .helpers import EOS, SMALL, dictionary, padded, sentences, small_model
from .whole_model import WholeModel

VARIANTS = {
    "base": {},
    "narrow keys, wide values": {"attention_key_dim": 3, "attention_value_dim": 6},
    "attention biases": {"attention_bias": True},
    "one head": {"encoder_attention_heads": 1},
}


def reference_of(model, **changes):
    heads = {**SMALL, **changes}["encoder_attention_heads"]
    width = SMALL["encoder_embed_dim"] // heads
    return WholeModel(
        model.state_dict(), layers=SMALL["encoder_layers"], heads=heads,
        d_k=changes.get("attention_key_dim", width), d_v=changes.get("attention_value_dim", width),
    )


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_teacher_forcing_equals_the_equations(changes, side):
    model = small_model(**changes)
    sources = [s + [EOS] for s in sentences(1, [5, 3, 1])]
    targets = [[EOS] + s for s in sentences(2, [2, 6, 4])]
    with torch.no_grad():
        logits, _ = model(padded(sources, side), None, padded(targets, side))
    reference = reference_of(model, **changes)
    for row, (source, target) in enumerate(zip(sources, targets)):
        expected = reference.decode(reference.encode(source), target)
        offset = logits.size(1) - len(target) if side == "left" else 0
        actual = logits[row, offset : offset + len(target)]
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("nodes, steps", [(128, 8), (4, 1), (10, 3)], ids=["as it is", "always short of room", "pruned often"])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_steps_with_random_reorders_equal_the_equations(changes, nodes, steps, monkeypatch):
    """Beam search reorders, repeats and drops hypotheses; each must go on as if it were alone."""
    monkeypatch.setattr(DecoderCache, "NODES", nodes)
    monkeypatch.setattr(DecoderCache, "STEPS", steps)
    model, generator = small_model(**changes), random.Random(3)
    reference = reference_of(model, **changes)
    sources = [s + [EOS] for s in sentences(4, [4, 2, 6])]
    memories = [reference.encode(source) for source in sources]
    beams = 3
    encoder_out = model.encoder(padded(sources, "left"))
    rows = [number for number in range(len(sources)) for _ in range(beams)]  # sentence of each hypothesis
    encoder_out = model.encoder.reorder_encoder_out(encoder_out, torch.tensor(rows))
    prefixes = [[EOS] for _ in rows]
    state = {}
    for step in range(13):
        logits, _ = model.decoder(torch.tensor(prefixes), encoder_out, incremental_state=state)
        assert logits.shape == (len(rows), 1, 24)
        for row, prefix in enumerate(prefixes):
            expected = reference.decode(memories[rows[row]], prefix)[-1]
            torch.testing.assert_close(logits[row, 0], expected, rtol=0, atol=1e-10)
        if step == 3:  # the sentence in the middle is finished
            alive = [row for row in range(len(rows)) if rows[row] != 1]
        else:
            alive = range(len(rows))
        groups = [[row for row in alive if rows[row] == number] for number in sorted({rows[r] for r in alive})]
        order = [generator.choice(group) for group in groups for _ in range(beams)]
        if step == 9:  # an order that no beam search makes: sentences mixed
            generator.shuffle(order)
        prefixes = [prefixes[row] + [generator.randrange(4, 24)] for row in order]
        rows = [rows[row] for row in order]
        model.decoder.reorder_incremental_state_scripting(state, torch.tensor(order))
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, torch.tensor(order))


def test_many_steps_outgrow_the_cache(monkeypatch):
    monkeypatch.setattr(DecoderCache, "NODES", 16)
    model = small_model()
    encoder_out = model.encoder(torch.tensor([[5, 6, 7, EOS]]))
    target = [EOS] + sentences(1, [79])[0]
    full, _ = model.decoder(torch.tensor([target]), encoder_out)
    state = {}
    for length in range(1, len(target) + 1):
        logits, _ = model.decoder(torch.tensor([target[:length]]), encoder_out, incremental_state=state)
        torch.testing.assert_close(logits[:, 0], full[:, length - 1], rtol=0, atol=1e-10)
        model.decoder.reorder_incremental_state_scripting(state, torch.tensor([0]))


def test_what_no_hypothesis_has_in_its_past_is_given_up(monkeypatch):
    """Three hypotheses of which the first alone lives on, again and again: one node a step stays, and those since."""
    monkeypatch.setattr(DecoderCache, "STEPS", 4)
    model = small_model()
    encoder_out = model.encoder(torch.tensor([[5, 6, 7, EOS], [8, 5, 9, EOS]]))
    encoder_out = model.encoder.reorder_encoder_out(encoder_out, torch.tensor([0, 0, 0, 1, 1, 1]))
    tokens, state = torch.full((6, 1), EOS), {}
    order = torch.tensor([0, 0, 0, 3, 3, 3])
    for step in range(12):
        model.decoder(tokens, encoder_out, incremental_state=state)
        cache = state["vaswani"]
        bias = cache.mask.bias
        assert bias.shape == (2, 4, 3, step // 4 * 4 + 3 * (step % 4 + 1))
        assert bias.eq(0).sum(dim=3).eq(step + 1).all()  # each sees as many as it has read
        assert bias[bias != 0].eq(-float("inf")).all()
        cache.reorder(order)
        tokens = torch.cat([tokens, torch.full((6, 1), 7)], dim=1)


def test_a_sentence_does_not_depend_on_its_batch_mates_in_float32():
    model = small_model().float()
    sources = [s + [EOS] for s in sentences(5, [9, 2, 5, 7])]
    targets = [[EOS] + s for s in sentences(6, [3, 8, 1, 6])]
    together, _ = model(padded(sources, "left"), None, padded(targets))
    for row, (source, target) in enumerate(zip(sources, targets)):
        for side in ("left", "right"):  # alone, and padded as if beside a longer one
            width = 12
            alone, _ = model(padded([source, [5] * width], side), None, padded([target, [5] * width]))
            difference = (alone[0, : len(target)] - together[row, : len(target)]).abs().max()
            assert difference < 1e-5


def test_the_encoder_runs_once_and_steps_see_one_token():
    model = small_model()
    widths = []
    hook = model.decoder.layers[0].self_attention.projection.register_forward_hook(
        lambda module, inputs, output: widths.append(inputs[0].size(1))
    )
    encoder_out = model.encoder(torch.tensor([[5, 6, EOS]]))
    state = {}
    for length in (1, 2, 3):
        tokens = torch.tensor([[EOS, 7, 8][:length]])
        model.decoder(tokens, encoder_out, incremental_state=state)
    hook.remove()
    assert widths == [1, 1, 1]


def test_a_source_of_padding_alone_gives_finite_logits_and_gradients():
    model = small_model().train()
    logits, _ = model(torch.tensor([[5, 6, EOS], [1, 1, 1]]), None, torch.tensor([[EOS, 7], [EOS, 8]]))
    assert logits.isfinite().all()
    logits.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_source_of_padding_alone_is_nothing_to_attend_to_in_steps_either():
    """Beside one that is not, and alone in the batch once that has left it."""
    model = small_model()
    encoder_out = model.encoder(torch.tensor([[5, 6, EOS], [1, 1, 1]]))
    target = torch.tensor([[EOS, 7, 9, 4], [EOS, 8, 5, 6]])
    full, state = model.decoder(target, encoder_out)[0], {}
    for length in (1, 2, 3, 4):
        alive = slice(0, None) if length < 3 else slice(1, None)
        logits, _ = model.decoder(target[alive, :length], encoder_out, incremental_state=state)
        torch.testing.assert_close(logits[:, 0], full[alive, length - 1], rtol=0, atol=1e-10)
        order = torch.tensor([0, 1] if length < 2 else [1] if length == 2 else [0])
        model.decoder.reorder_incremental_state_scripting(state, order)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)


def test_a_batch_that_all_sentences_have_left():
    """An empty order, as a search may give that drops what is done before it looks whether anything is left."""
    model = small_model()
    encoder_out, state = model.encoder(torch.tensor([[5, 6, EOS], [1, 7, EOS]])), {}
    model.decoder(torch.full((2, 1), EOS), encoder_out, incremental_state=state)
    model.decoder.reorder_incremental_state_scripting(state, torch.tensor([], dtype=torch.long))
    assert state["vaswani"].beams == 0 and state["vaswani"].memory(0)[0].size(0) == 0


def matrices(model):
    return (
        model.encoder.embedding.weight, model.decoder.embedding.weight, model.decoder.output_projection.weight
    )


def assert_tied(model):
    first, *others = matrices(model)
    assert all(other is first and other.data_ptr() == first.data_ptr() for other in others)


def test_one_matrix_in_three_places_survives_all_that_happens_to_a_model(tmp_path):
    model = small_model()
    assert_tied(model)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other = small_model(seed=2)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_tied(other)
    assert torch.equal(matrices(other)[0], matrices(model)[0])
    assert_tied(other.half())
    assert_tied(other.bfloat16().float())
    before = matrices(model)[0].clone()
    model.train()
    logits, _ = model(torch.tensor([[5, EOS]]), None, torch.tensor([[EOS, 6]]))
    logits.logsumexp(-1).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert_tied(model)
    assert not torch.equal(matrices(model)[0], before)


def test_the_shared_gradient_is_the_sum_of_the_three_places():
    tied, apart = small_model(), small_model(share_all_embeddings=False)
    apart.load_state_dict(tied.state_dict())
    for model in (tied, apart):
        logits, _ = model(torch.tensor([[5, 6, 7, EOS]]), None, torch.tensor([[EOS, 7, 8]]))
        logits.log_softmax(-1)[..., 5].sum().backward()
    total = sum(matrix.grad for matrix in matrices(apart))
    torch.testing.assert_close(matrices(tied)[0].grad, total, rtol=0, atol=1e-12)


def test_checkpointed_activations_change_no_gradient_and_are_recomputed():
    plain, saving = small_model(dropout=0.3), small_model(dropout=0.3, checkpoint_activations=True)
    calls = []
    saving.encoder.layers[0].feed_forward.register_forward_hook(lambda *_: calls.append(1))
    gradients = []
    for model in (plain.train(), saving.train()):
        torch.manual_seed(7)
        logits, _ = model(torch.tensor([[1, 5, 6, EOS]]), None, torch.tensor([[EOS, 7, 8]]))
        logits.log_softmax(-1)[..., 5].sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert len(calls) == 2  # forward, and once more in the backward pass
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_alignment_is_the_mean_of_the_last_layers_heads_and_changes_nothing():
    model = small_model()
    source, target = torch.tensor([[5, 6, 7, EOS], [1, 1, 8, EOS]]), torch.tensor([[EOS, 7, 8]] * 2)
    plain, extra = model(source, None, target)
    assert extra["attn"] == [None]
    model.make_generation_fast_(need_attn=True)
    logits, extra = model(source, None, target)
    assert torch.equal(logits, plain)
    attention = extra["attn"][0]
    assert attention.shape == (2, 3, 4)
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    assert (attention[1, :, :2] == 0).all()
    state, encoder_out = {}, model.encoder(source)
    for length in (1, 2, 3):
        _, extra = model.decoder(target[:, :length], encoder_out, incremental_state=state)
        torch.testing.assert_close(extra["attn"][0][:, 0], attention[:, length - 1], rtol=0, atol=1e-12)


def test_sentences_at_and_beyond_the_limit():
    model = small_model(max_source_positions=8, max_target_positions=6)
    model(torch.tensor([[5] * 8]), None, torch.tensor([[EOS] * 6]))
    with pytest.raises(UserError, match="source of 9 tokens is longer than --max-source-positions 8"):
        model(torch.tensor([[5] * 9]), None, torch.tensor([[EOS]]))
    with pytest.raises(UserError, match="target of 7 tokens is longer than --max-target-positions 6"):
        model(torch.tensor([[5]]), None, torch.tensor([[EOS] * 7]))


def test_sinusoids_reach_beyond_the_first_table():
    model = small_model(max_source_positions=3000)
    encoded = model.encoder(torch.tensor([[5] * 2500]))["encoder_out"][0]
    assert encoded.shape == (2500, 1, 16)
    assert encoded.isfinite().all()


def test_different_dictionaries_cannot_share_one_matrix():
    config = VaswaniConfig(**SMALL)
    with pytest.raises(UserError, match="--joined-dictionary"):
        VaswaniModel.from_config(config, dictionary(5), dictionary(6))
    model = VaswaniModel.from_config(
        VaswaniConfig(**SMALL, share_all_embeddings=False), dictionary(5), dictionary(6)
    )
    assert [tuple(matrix.shape) for matrix in matrices(model)] == [(9, 16), (10, 16), (10, 16)]


def test_a_checkpoint_of_another_model_is_named():
    # An encoder layer holds 10 tensors, a decoder layer 14.
    with pytest.raises(UserError, match=r"of another model: 24 tensors differ, the first is decoder\.layers\.1\."):
        small_model().load_state_dict(small_model(encoder_layers=1, decoder_layers=1).state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close_and_finite(dtype):
    model = small_model()
    source, target = torch.tensor([[1, 5, 6, EOS], [7, 8, 9, EOS]]), torch.tensor([[EOS, 7, 8]] * 2)
    exact, _ = model(source, None, target)
    rough, _ = model.to(dtype)(source, None, target)
    assert rough.dtype == dtype
    assert (rough.double() - exact).abs().max() < 40 * torch.finfo(dtype).eps * exact.abs().max()


def test_return_all_hiddens_gives_the_input_and_each_layer():
    model = small_model()
    encoder_out = model.encoder(torch.tensor([[5, 6, EOS]]), return_all_hiddens=True)
    assert [tuple(state.shape) for state in encoder_out["encoder_states"]] == [(3, 1, 16)] * 3
    assert torch.equal(encoder_out["encoder_states"][-1], encoder_out["encoder_out"][0])
    _, extra = model(torch.tensor([[5, EOS]]), None, torch.tensor([[EOS, 6]]), return_all_hiddens=True)
    assert len(extra["inner_states"]) == 3


@pytest.mark.parametrize("entries", [3, 40, 1003, 37_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_log_probabilities_of_a_step(entries, dtype):
    """Written over the logits, where they are float32, and the same as those that are not."""
    logits = torch.randn(5, entries, generator=torch.Generator().manual_seed(1)).to(dtype) * 20
    expected = logits.double() - logits.double().exp().sum(dim=1, keepdim=True).log()
    actual = small_model().decoder.log_probs_(logits)
    assert actual.dtype == torch.promote_types(dtype, torch.float32)
    assert (actual.data_ptr() == logits.data_ptr()) == (dtype == torch.float32)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=1e-5)
