"""Section 3.2: scaled dot-product attention, multi-head attention, and where they are used."""

import math

import torch

from specs import expect, reference, rows
from specs.helpers import TOLERANCE, all_layers, kinds, shake, small_model, states, words
from specs.judge import spec
from specs.spy import depends, multiply_accumulates


def _one_head(queries=5, keys=7, d_k=8, d_v=8):
    return states(1, 1, queries, d_k), states(1, 1, keys, d_k), states(1, 1, keys, d_v)


@spec("3.2.1-equation")
def test_equation(subject):
    q, k, v = _one_head()
    expected = reference.attention(q[0, 0], k[0, 0], v[0, 0])
    expect.close(subject.attention(q, k, v), expected[None, None], TOLERANCE, "Attention(Q, K, V)")


@spec("3.2.1-scale")
def test_scale(subject):
    for d_k in (4, 64):
        q, k, v = torch.zeros(1, 1, 1, d_k).double(), torch.zeros(1, 1, 2, d_k).double(), torch.zeros(1, 1, 2, d_k).double()
        q[..., 0] = k[0, 0, 0, 0] = v[0, 0, 0, 0] = 1.0  # scores 1 and 0, values 1 and 0: the output is the first weight
        weight = expect.tensor(subject.attention(q, k, v), (1, 1, 1, d_k), "Attention(Q, K, V)")[0, 0, 0, 0].item()
        expect.true(0 < weight < 1, "a weight between 0 and 1", weight)
        expect.near(math.log(weight / (1 - weight)), 1 / math.sqrt(d_k), 1e-5, f"the score of q.k = 1 with d_k = {d_k}")


@spec("3.2.1-value-width-of-its-own")
def test_value_width(subject):
    q, k, v = _one_head(d_k=4, d_v=9)
    expected = reference.attention(q[0, 0], k[0, 0], v[0, 0])
    expect.close(subject.attention(q, k, v), expected[None, None], TOLERANCE, "Attention(Q, K, V) with d_k = 4, d_v = 9")


@spec("3.2.1-rows-are-shares")
def test_rows_are_shares(subject):
    q, k, _ = _one_head()
    weights = expect.tensor(subject.attention_weights(q, k), (1, 1, 5, 7), "attention weights")
    expect.true((weights >= 0).all(), "weights of at least 0", weights.min().item())
    expect.close(weights.sum(dim=-1), torch.ones(1, 1, 5), 1e-6, "the sum of each query's weights")


@spec("3.2.1-convex-combination")
def test_convex_combination(subject):
    q, k, v = _one_head()
    output = expect.tensor(subject.attention(q, k, v), (1, 1, 5, 8), "Attention(Q, K, V)")
    low, high = v.amin(dim=2, keepdim=True), v.amax(dim=2, keepdim=True)
    inside = ((output >= low - 1e-6) & (output <= high + 1e-6)).all()
    expect.true(inside, "every output between the smallest and largest value", "one outside")
    constant = torch.full_like(v, 2.5)
    expect.close(subject.attention(q, k, constant), torch.full((1, 1, 5, 8), 2.5), 1e-5, "attention to values that are all 2.5")


@spec("3.2.1-mask-before-softmax")
def test_mask_before_softmax(subject):
    q, k, v = _one_head()
    allowed = torch.rand(5, 7) < 0.5
    allowed[:, 2] = True
    allowed[:, 4] = False
    expected = reference.attention(q[0, 0], k[0, 0], v[0, 0], allowed)
    expect.close(subject.attention(q, k, v, allowed), expected[None, None], TOLERANCE, "masked Attention(Q, K, V)")


@spec("3.2.1-illegal-weights-are-zero")
def test_illegal_weights_are_zero(subject):
    q, k, _ = _one_head()
    allowed = torch.ones(5, 7).bool().tril()
    weights = expect.tensor(subject.attention_weights(30 * q, 30 * k, allowed), (1, 1, 5, 7), "masked attention weights")
    leak = weights[0, 0][~allowed].abs().max().item()
    expect.true(leak == 0.0, "illegal weights of exactly 0", f"{leak:.3g}")


@spec("choice-nothing-to-see")
def test_nothing_to_see(subject):
    q, k, v = (x.requires_grad_() for x in _one_head())
    allowed = torch.ones(5, 7).bool()
    allowed[3] = False
    output = expect.tensor(subject.attention(q, k, v, allowed), (1, 1, 5, 8), "attention with one query that may see nothing")
    expect.close(output[0, 0, 3], torch.zeros(8), 0.0, "the output of a query that may see nothing")
    for gradient in torch.autograd.grad(output.sum(), (q, k, v)):
        expect.tensor(gradient, (None,) * 4, "gradient beside a query that may see nothing")


@spec("3.2.1-scaled-scores-have-unit-variance")
def test_scaled_scores_have_unit_variance(subject):
    # The difference of two scores of one query has variance 2. 20 000 independent queries with 2 keys each: the estimate's
    # relative standard deviation is sqrt((2 + 6 / d_k) / n), at most 1.3 %; 6.5 % is five of them: error below 6e-7.
    n = 20_000
    for d_k in (4, 16, 64):
        q, k = states(n, 1, 1, d_k), states(n, 1, 2, d_k)
        weights = expect.tensor(subject.attention_weights(q, k), (n, 1, 1, 2), "attention weights").clamp_min(1e-300)
        difference = weights[..., 0].log() - weights[..., 1].log()
        expect.near(difference.var().item() / 2, 1.0, 0.065, f"the variance of scaled scores with d_k = {d_k}")


@spec("3.2.1-softmax-stays-soft")
def test_softmax_stays_soft(subject):
    # Mean of the largest of 50 weights; its standard deviation over queries is below 0.08, of 400 queries 0.004: the
    # bounds are more than five of them away.
    for d_k in (16, 256):
        q, k = states(400, 1, 1, d_k), states(400, 1, 50, d_k)
        weights = expect.tensor(subject.attention_weights(q, k), (400, 1, 1, 50), "attention weights")
        largest = weights.amax(dim=-1).mean().item()
        expect.true(0.10 < largest < 0.16, f"a mean largest weight near 0.13 with d_k = {d_k}", f"{largest:.3f}")


@spec("consequence-constant-key-shift")
def test_constant_key_shift(subject):
    q, k, v = _one_head()
    before = subject.attention(q, k, v)
    expect.close(subject.attention(q, k + 3.0, v), before, TOLERANCE, "attention after adding 3 to every key")


@spec("3.2.2-multi-head")
def test_multi_head(subject):
    model = shake(small_model(subject))
    x, memory = states(1, 4, 16), states(1, 6, 16)
    for stack, layer in all_layers(subject, model):
        for kind in kinds(stack):
            weights = {name: w if w is None else w.detach() for name, w in subject.projections(layer, kind).items()}
            keys = memory if kind == "cross" else x
            allowed = torch.ones(4, 4).bool().tril() if kind == "masked" else None
            expected = reference.multi_head(x[0], keys[0], weights, 4, allowed)
            got = subject.sublayer(layer, kind, x, memory if kind == "cross" else None)
            expect.close(got, expected[None], TOLERANCE, f"Concat(heads) W_O of the {stack}'s {kind} attention")


@spec("3.2.2-projection-shapes")
def test_projection_shapes(subject):
    model = small_model(subject, d_model=24, heads=3, d_k=8, d_v=8)
    for stack, layer in all_layers(subject, model):
        for kind in kinds(stack):
            weights = subject.projections(layer, kind)
            for name in ("W_Q", "W_K", "W_V", "W_O"):
                expect.tensor(weights[name], (24, 24), f"{name} of the {stack}'s {kind} attention")


@spec("3.2.2-separate-projections")
def test_separate_projections(subject):
    model = small_model(subject)
    for stack, layer in all_layers(subject, model):
        for kind in kinds(stack):
            weights = subject.projections(layer, kind)
            matrices = [weights[name].detach() for name in ("W_Q", "W_K", "W_V")]
            for a in range(3):
                for b in range(a):
                    different = (matrices[a] != matrices[b]).any()
                    expect.true(different, "queries, keys and values to have projections of their own", "two equal ones")
            blocks = matrices[0].chunk(4, dim=1)
            expect.true((blocks[0] != blocks[1]).any(), "each head to have a projection of its own", "two equal heads")


@spec("3.2.2-any-head-width")
def test_any_head_width(subject):
    model = shake(small_model(subject, heads=3, d_k=2, d_v=7))
    x = states(1, 4, 16)
    layer = subject.layers(model, "encoder")[0]
    weights = {name: w if w is None else w.detach() for name, w in subject.projections(layer, "self").items()}
    for name, shape in (("W_Q", (16, 6)), ("W_K", (16, 6)), ("W_V", (16, 21)), ("W_O", (21, 16))):
        expect.tensor(weights[name], shape, f"{name} with h = 3, d_k = 2, d_v = 7")
    expected = reference.multi_head(x[0], x[0], weights, 3)
    expect.close(subject.sublayer(layer, "self", x), expected[None], TOLERANCE, "attention with h = 3, d_k = 2, d_v = 7")


@spec("3.2.2-cost-does-not-depend-on-heads")
def test_cost_does_not_depend_on_heads(subject):
    costs = set()
    for heads in (1, 2, 4, 8):
        model = small_model(subject, heads=heads, d_k=16 // heads, d_v=16 // heads)
        layer = subject.layers(model, "encoder")[0]
        x = states(1, 6, 16)
        products = multiply_accumulates(lambda: subject.sublayer(layer, "self", x))  # noqa: B023
        parameters = sum(w.numel() for name, w in subject.projections(layer, "self").items() if name.startswith("W"))
        costs.add((products, parameters))
    expect.true(len(costs) == 1, "the same operations and parameters for 1, 2, 4 and 8 heads", sorted(costs))


@spec("choice-no-attention-bias")
def test_no_attention_bias(subject):
    model = small_model(subject)
    for stack, layer in all_layers(subject, model):
        for kind in kinds(stack):
            weights = subject.projections(layer, kind)
            present = [name for name in ("b_Q", "b_K", "b_V", "b_O") if weights.get(name) is not None]
            expect.equal(present, [], "biases of the attention projections")


def _sees(subject, layer, kind, t, s=None):
    memory = None if s is None else states(1, s, 16)
    return depends(lambda x: subject.sublayer(layer, kind, x[None], memory)[0], states(t, 16))


@spec("3.2.3-encoder-sees-everything")
def test_encoder_sees_everything(subject):
    model = small_model(subject)
    for layer in subject.layers(model, "encoder"):
        seen = _sees(subject, layer, "self", 5)
        expect.equal(seen.int().tolist(), [[1] * 5] * 5, "what encoder self-attention sees")


@spec("3.2.3-decoder-sees-itself-and-before")
def test_decoder_sees_itself_and_before(subject):
    model = small_model(subject)
    for layer in subject.layers(model, "decoder"):
        seen = _sees(subject, layer, "masked", 4)
        expect.equal(seen.int().tolist(), torch.ones(4, 4).tril().int().tolist(), "what decoder self-attention sees")


@spec("3.2.3-cross-attention-sees-all-source")
def test_cross_attention_sees_all_source(subject):
    model = small_model(subject)
    y = states(1, 3, 16)
    for layer in subject.layers(model, "decoder"):
        seen = depends(lambda memory: subject.sublayer(layer, "cross", y, memory[None])[0], states(5, 16))
        expect.equal(seen.int().tolist(), [[1] * 5] * 3, "what each target position sees of the source")


@spec("3.2.3-cross-attention-queries-are-the-decoders")
def test_cross_attention_queries(subject):
    model = small_model(subject)
    for layer in subject.layers(model, "decoder"):
        seen = _sees(subject, layer, "cross", 3, s=5)
        expect.equal(seen.int().tolist(), torch.eye(3).int().tolist(), "what of the decoder a cross-attention output depends on")


@spec("3.2.3-worked-example")
def test_worked_example(subject):
    model = small_model(subject)
    encoder, decoder = subject.layers(model, "encoder")[0], subject.layers(model, "decoder")[0]
    expect.equal(_sees(subject, encoder, "self", 3).int().tolist(), [[1] * 3] * 3, "source positions that see each other")
    expect.equal(_sees(subject, decoder, "masked", 2).int().tolist(), [[1, 0], [1, 1]], "target positions that see each other")
    y = states(1, 2, 16)
    seen = depends(lambda memory: subject.sublayer(decoder, "cross", y, memory[None])[0], states(3, 16))
    expect.equal(seen.int().tolist(), [[1] * 3] * 2, "source positions that each target position sees")


@spec("appendix-attention-maps")
def test_attention_maps(subject):
    model = small_model(subject)
    source, target_in = words(subject, 2, 5), words(subject, 2, 4)
    before = subject.logits(model, source, target_in)
    maps = subject.attention_maps(model, source, target_in)
    for kind, shape in (("encoder", (2, 4, 5, 5)), ("decoder", (2, 4, 4, 4)), ("cross", (2, 4, 4, 5))):
        expect.equal(len(maps[kind]), 2, f"layers with {kind} maps")
        for weights in maps[kind]:
            weights = expect.tensor(weights, shape, f"{kind} attention map, one for each head")
            expect.close(weights.sum(dim=-1), torch.ones(shape[:3]), 1e-5, f"the sum of each row of the {kind} map")
    expect.close(subject.logits(model, source, target_in), before, 0.0, "logits after looking at the maps")


@spec("appendix-maps-are-those-in-use")
def test_maps_are_those_in_use(subject):
    model = small_model(subject)
    source, target_in = words(subject, 1, 5), words(subject, 1, 4)
    maps = subject.attention_maps(model, source, target_in)
    layer = subject.layers(model, "encoder")[0]
    w = subject.projections(layer, "self")
    x = subject.embed(model, source, "encoder")[0].detach()
    bias = {name: 0.0 if w.get(name) is None else w[name].detach() for name in ("b_Q", "b_K")}
    q, k = x @ w["W_Q"].detach() + bias["b_Q"], x @ w["W_K"].detach() + bias["b_K"]
    for head in range(4):
        block = slice(4 * head, 4 * head + 4)
        expected = reference.attention_weights(q[:, block], k[:, block])
        expect.close(maps["encoder"][0][0, head], expected, TOLERANCE, f"the map of head {head} of the first encoder layer")
