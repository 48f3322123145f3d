"""Section 3 and 3.1, Figure 1: encoder and decoder stacks, residuals, post-norm, auto-regression."""

import torch

from specs import expect, rows
from specs.helpers import TOLERANCE, all_layers, shake, sharp_model, small_model, states, words
from specs.judge import spec
from specs.spy import calls
from specs.subject import NotOffered


@spec("3-prediction-depends-on-earlier-outputs")
def test_prediction_depends_on_earlier_outputs(subject):
    model = small_model(subject)
    source, target_in = words(subject, 1, 5), words(subject, 1, 6)
    before = expect.tensor(subject.logits(model, source, target_in), (1, 6, rows.SMALL.vocabulary), "logits")
    for j in range(6):
        changed = target_in.clone()
        changed[0, j] = subject.first_word + (changed[0, j] + 1 - subject.first_word) % (23 - subject.first_word)
        after = expect.tensor(subject.logits(model, source, changed), before.shape, "logits")
        moved = (after - before).abs().amax(dim=2)[0] > 1e-9
        expect.true(not moved[:j].any(), f"predictions before position {j} to ignore input {j}", "a change")
        expect.true(moved[j:].all(), f"predictions from position {j} on to use input {j}", "no change")


@spec("3-shifted-right")
def test_shifted_right(subject):
    targets = torch.cat((words(subject, 2, 4), torch.full((2, 1), subject.end)), dim=1)
    shifted = subject.shift_right(targets)
    expected = [[subject.start, *row[:-1]] for row in targets.tolist()]
    expect.equal(shifted.tolist(), expected, "the decoder's training input")


@spec("3-bos-a-b")
def test_bos_a_b(subject):
    model = small_model(subject)
    source = words(subject, 1, 3)
    a, b, other = 5, 7, 9
    base = subject.logits(model, source, torch.tensor([[subject.start, a, b]]))
    base = expect.tensor(base, (1, 3, rows.SMALL.vocabulary), "logits of [BOS, A, B]")
    seen = []
    for position in range(3):
        prefix = [subject.start, a, b]
        prefix[position] = other
        changed = subject.logits(model, source, torch.tensor([prefix])).double()
        if (changed - base)[0, 1].abs().max() > 1e-9:
            seen.append(position)
    expect.equal(seen, [0, 1], "the inputs that position 1 attends to")


@spec("3-one-pass-gives-all-predictions")
def test_one_pass_gives_all_predictions(subject):
    model = small_model(subject)
    modules = {f"{stack} {i}": layer for stack in ("encoder", "decoder") for i, layer in enumerate(subject.layers(model, stack))}
    with calls(modules) as seen:
        subject.logits(model, words(subject, 2, 5), words(subject, 2, 7))
    expect.equal(sorted(seen), sorted(modules), "the layers called for all seven predictions, each once")


@spec("3-step-by-step-equals-parallel")
def test_step_by_step_equals_parallel(subject):
    model = small_model(subject)
    source, target_in = words(subject, 2, 5), words(subject, 2, 6)
    target_in[:, 0] = subject.start
    parallel = subject.logits(model, source, target_in)
    expect.close(subject.step_logits(model, source, target_in), parallel, TOLERANCE, "step-by-step logits")


@spec("3-encoder-runs-once")
def test_encoder_runs_once(subject):
    source = words(subject, 1, 4)
    model = sharp_model(subject, source)
    with calls({"encoder": subject.layers(model, "encoder")[0]}) as seen:
        subject.translate(model, source, beam=2, alpha=0.6)
    expect.equal(len(seen), 1, "runs of the first encoder layer during one translation")


@spec("3-decoder-runs-once-per-token")
def test_decoder_runs_once_per_token(subject):
    model = small_model(subject)
    # A step need not go through the layer's own forward method; it must go through its last norm.
    norm = subject.norms(subject.layers(model, "decoder")[0])[-1]
    if not isinstance(norm, torch.nn.Module):
        raise NotOffered("the decoder layer's last norm as a module")
    with calls({"norm": norm}) as seen:
        subject.step_logits(model, words(subject, 1, 4), words(subject, 1, 6))
    expect.equal(len(seen), 6, "runs of a decoder layer for six tokens")


@spec("3-encoder-output-feeds-every-decoder-layer")
def test_encoder_output_feeds_every_decoder_layer(subject):
    model = small_model(subject)
    y, memory = states(1, 4, 16), states(1, 5, 16)
    for i, layer in enumerate(subject.layers(model, "decoder")):
        a = expect.tensor(subject.decoder_layer(layer, y, memory), (1, 4, 16), f"output of decoder layer {i}")
        b = expect.tensor(subject.decoder_layer(layer, y, torch.zeros_like(memory)), (1, 4, 16), f"output of decoder layer {i}")
        expect.true((a - b).abs().max() > 1e-6, f"decoder layer {i} to use the encoder's output", "no difference without it")


@spec("3.1-encoder-depth")
def test_encoder_depth(subject):
    with torch.device("meta"):
        model = subject.build(rows.sizes("base", 64))
    expect.equal(len(subject.layers(model, "encoder")), 6, "encoder layers of the base model")


@spec("3.1-decoder-depth")
def test_decoder_depth(subject):
    with torch.device("meta"):
        model = subject.build(rows.sizes("base", 64))
    expect.equal(len(subject.layers(model, "decoder")), 6, "decoder layers of the base model")


@spec("3.1-layers-share-no-parameters")
def test_layers_share_no_parameters(subject):
    model = small_model(subject)
    owner = {}
    for i, (stack, layer) in enumerate(all_layers(subject, model)):
        for parameter in layer.parameters():
            other = owner.setdefault(id(parameter), i)
            expect.true(other == i, "every layer to own its parameters", f"a parameter in two layers ({stack})")


def _encoder(subject, model):
    """Embedded source and the encoder's output for it."""
    x = states(2, 5, 16)
    try:
        return x, subject.encoder_stack(model, x)
    except NotOffered:
        source = words(subject, 2, 5)
        return subject.embed(model, source, "encoder"), subject.encode(model, source)


def _decoder(subject, model):
    """Embedded target, encoder output, and the decoder's output for them."""
    y, memory = states(2, 4, 16), states(2, 5, 16)
    try:
        return y, memory, subject.decoder_stack(model, y, memory)
    except NotOffered:
        source, target_in = words(subject, 2, 5), words(subject, 2, 4)
        memory = subject.encode(model, source)
        return subject.embed(model, target_in, "decoder"), memory, subject.decode(model, memory, source, target_in)


@spec("3.1-encoder-stack")
def test_encoder_stack(subject):
    model = shake(small_model(subject))
    x, output = _encoder(subject, model)
    for layer in subject.layers(model, "encoder"):
        x = subject.encoder_layer(layer, x)
    expect.close(output, x, TOLERANCE, "the encoder's output (its layers one after another)")


@spec("3.1-decoder-stack")
def test_decoder_stack(subject):
    model = shake(small_model(subject))
    y, memory, output = _decoder(subject, model)
    for layer in subject.layers(model, "decoder"):
        y = subject.decoder_layer(layer, y, memory)
    expect.close(output, y, TOLERANCE, "the decoder's output (its layers one after another)")


@spec("3.1-encoder-sublayers")
def test_encoder_sublayers(subject):
    model = shake(small_model(subject))
    x = states(2, 5, 16)
    for layer in subject.layers(model, "encoder"):
        norms = subject.norms(layer)
        expect.equal(len(norms), 2, "norms in an encoder layer")
        y = norms[0](x + subject.sublayer(layer, "self", x))
        y = norms[1](y + subject.sublayer(layer, "feed-forward", y))
        expect.close(subject.encoder_layer(layer, x), y, TOLERANCE, "an encoder layer: LayerNorm(x + Sublayer(x)), twice")


@spec("3.1-decoder-sublayers")
def test_decoder_sublayers(subject):
    model = shake(small_model(subject))
    x, memory = states(2, 4, 16), states(2, 5, 16)
    for layer in subject.layers(model, "decoder"):
        norms = subject.norms(layer)
        expect.equal(len(norms), 3, "norms in a decoder layer")
        y = norms[0](x + subject.sublayer(layer, "masked", x))
        y = norms[1](y + subject.sublayer(layer, "cross", y, memory))
        y = norms[2](y + subject.sublayer(layer, "feed-forward", y))
        expect.close(
            subject.decoder_layer(layer, x, memory), y, TOLERANCE, "a decoder layer: LayerNorm(x + Sublayer(x)), three times"
        )


def _normalised(x, what):
    x = expect.tensor(x, (None, None, 16), what)
    mean, variance = x.mean(dim=-1).abs().max().item(), x.var(dim=-1, unbiased=False)
    expect.true(mean < 1e-5, f"{what} with mean 0 at every position", f"{mean:.3g}")
    off = (variance - 1).abs().max().item()
    expect.true(off < 1e-3, f"{what} with variance 1 at every position", f"a difference of {off:.3g}")


@spec("3.1-encoder-ends-normalised")
def test_encoder_ends_normalised(subject):
    _normalised(_encoder(subject, small_model(subject))[-1], "a fresh encoder's output")


@spec("3.1-decoder-ends-normalised")
def test_decoder_ends_normalised(subject):
    _normalised(_decoder(subject, small_model(subject))[-1], "a fresh decoder's output")


@spec("3.1-layer-norm")
def test_layer_norm(subject):
    model = shake(small_model(subject))
    x = 3 * states(2, 5, 16) + 1
    for stack, layer in all_layers(subject, model):
        for norm in subject.norms(layer):
            zeros = expect.tensor(norm(torch.zeros_like(x)), x.shape, "LayerNorm(0)")[0, 0]
            probe = torch.zeros(16, 2, 16, dtype=torch.float64)
            # Gains from a probe whose normalised rows are known: +s, -s in two columns.
            for c in range(16):
                probe[c, :, c], probe[c, :, (c + 1) % 16] = 100.0, -100.0
            unit = (16 / 2) ** 0.5
            gain = (expect.tensor(norm(probe), probe.shape, "LayerNorm")[range(16), 0, range(16)] - zeros) / unit
            normalised = (x - x.mean(-1, keepdim=True)) / x.var(-1, unbiased=False, keepdim=True).sqrt()
            expect.close(norm(x), normalised * gain + zeros, 1e-4, "LayerNorm: (x - mean) / standard deviation, gain, bias")


@spec("choice-layer-norm-epsilon")
def test_layer_norm_epsilon(subject):
    model = small_model(subject)
    x = states(1, 1, 16)
    x = (x - x.mean()) / x.std(unbiased=False) * 1e-3  # variance 1e-6
    for stack, layer in all_layers(subject, model):
        for norm in subject.norms(layer):
            variance = expect.tensor(norm(x), x.shape, "LayerNorm").var(unbiased=False).item()
            # variance / (variance + epsilon)
            expect.near(1e-6 / variance - 1e-6, 1e-6, 1e-2, "epsilon of LayerNorm")


@spec("3.1-sublayers-return-d-model")
def test_sublayers_return_d_model(subject):
    model = small_model(subject)
    x, memory = states(2, 4, 16), states(2, 5, 16)
    for layer in subject.layers(model, "encoder"):
        for kind in ("self", "feed-forward"):
            expect.tensor(subject.sublayer(layer, kind, x), (2, 4, 16), f"output of the {kind} sub-layer")
    for layer in subject.layers(model, "decoder"):
        for kind in ("masked", "cross", "feed-forward"):
            expect.tensor(subject.sublayer(layer, kind, x, memory), (2, 4, 16), f"output of the {kind} sub-layer")
    expect.tensor(subject.embed(model, words(subject, 2, 4), "encoder"), (2, 4, 16), "embedded source")
    expect.tensor(subject.embed(model, words(subject, 2, 4), "decoder"), (2, 4, 16), "embedded target")


@spec("3-softmax-over-vocabulary")
def test_softmax_over_vocabulary(subject):
    model = small_model(subject)
    source, target_in = words(subject, 2, 5), words(subject, 2, 4)
    logits = expect.tensor(subject.logits(model, source, target_in), (2, 4, 23), "logits")
    probabilities = subject.probabilities(model, source, target_in)
    expect.close(probabilities, torch.softmax(logits, dim=-1), TOLERANCE, "next-token probabilities (softmax of the logits)")


@spec("exercise-trace-the-shapes")
def test_trace_the_shapes(subject):
    sizes = rows.sizes("base", 64)
    sizes = type(sizes)(**{**vars(sizes), "layers": 1})
    model = subject.build(sizes).eval()
    source, target_in = words(subject, 32, 40, vocabulary=64), words(subject, 32, 50, vocabulary=64)
    with torch.no_grad():
        maps = subject.attention_maps(model, source, target_in)
        expect.tensor(maps["encoder"][0], (32, 8, 40, 40), "encoder self-attention scores")
        expect.tensor(maps["decoder"][0], (32, 8, 50, 50), "decoder self-attention scores")
        expect.tensor(maps["cross"][0], (32, 8, 50, 40), "cross-attention scores")
        memory = subject.encode(model, source)
        expect.tensor(memory, (32, 40, 512), "encoder output")
        expect.tensor(subject.decode(model, memory, source, target_in), (32, 50, 512), "decoder output")
        expect.tensor(subject.logits(model, source, target_in), (32, 50, 64), "logits")
        inner = subject.feed_forward_weights(subject.layers(model, "encoder")[0])["W_1"]
        expect.tensor(memory @ inner.to(memory), (32, 40, 2048), "inner layer of the feed-forward network")


@spec("choice-padding-is-invisible")
def test_padding_is_invisible(subject):
    model = small_model(subject)
    source, target_in = words(subject, 1, 4), words(subject, 1, 3)
    padded = torch.cat((source, torch.full((1, 3), subject.padding)), dim=1)
    both = torch.cat((padded, words(subject, 1, 7)))
    encoded = subject.encode(model, both)
    expect.close(encoded[:1, :4], subject.encode(model, source), TOLERANCE, "the encoder's output beside padding")
    expect.close(
        subject.logits(model, both, target_in.repeat(2, 1))[:1],
        subject.logits(model, source, target_in),
        TOLERANCE,
        "the decoder's logits beside source padding",
    )
