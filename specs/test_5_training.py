"""Section 5: batches, hardware, optimizer and schedule, regularisation."""

import math

import torch

from specs import expect, reference
from specs.helpers import TOLERANCE, small_model, states, words
from specs.judge import spec
from specs.spy import DropoutMasks


# ---- 5.1, 5.2: data, batches, length of training --------------------------------------------------------------------
@spec("5.1-batches-fit")
def test_batches_fit(subject):
    lengths = _lengths()
    groups = subject.batches(lengths, 400)
    expect.true(len(groups) > 30, "enough batches for 600 sentence pairs", len(groups))
    for group in groups:
        for side, name in ((0, "source"), (1, "target")):
            size = len(group) * max(lengths[i][side] for i in group)
            expect.true(size <= 400, f"at most 400 padded {name} tokens in a batch", size)


@spec("5.1-no-pair-is-lost")
def test_no_pair_is_lost(subject):
    for pairs in (600, 599, 3):
        groups = subject.batches(_lengths()[:pairs], 400)
        seen = sorted(i for group in groups for i in group)
        lost = sorted(set(range(pairs)) - set(seen))
        expect.true(not lost, f"each of {pairs} sentence pairs in a batch", f"{len(lost)} lost, such as number {lost[:1]}")
        expect.equal(len(seen), pairs, "sentence pairs in all batches")


@spec("5.1-similar-lengths-together")
def test_similar_lengths_together(subject):
    lengths = _lengths()
    groups = subject.batches(lengths, 400)
    spread = sum(max(lengths[i][1] for i in g) - min(lengths[i][1] for i in g) for g in groups) / len(groups)
    expect.true(spread < 8, "target lengths within a batch to differ little (random batches: by about 30)", f"{spread:.1f} on average")


def _lengths():
    target = torch.randint(3, 50, (600,))
    source = (target + torch.randint(-2, 3, (600,))).clamp_min(2)
    return [(int(s), int(t)) for s, t in zip(source, target)]


@spec("5.1-tokens-per-update")
def test_tokens_per_update(subject):
    expect.equal(subject.recipe("base").tokens_per_update, 25000, "target tokens per update, over all workers")


@spec("5.2-base-updates")
def test_base_updates(subject):
    expect.equal(subject.recipe("base").updates, 100_000, "updates of the base model")


@spec("5.2-big-updates")
def test_big_updates(subject):
    for name in ("big", "big-en-fr"):
        expect.equal(subject.recipe(name).updates, 300_000, f"updates of {name}")


@spec("5.2-twelve-hours", "contradiction-twelve-hours")
def test_twelve_hours(paper):
    base = paper.reported["hardware"]["base"]
    by_steps = base["steps"] * base["seconds_per_step"] / 3600
    expect.near(by_steps, 100 / 9, 1e-9, "hours from 100 000 steps of 0.4 s")
    expect.true(round(by_steps) != base["hours"] and abs(by_steps - base["hours"]) < 1, "the printed 12 hours to be 11.1 rounded up", base)


@spec("5.2-three-and-a-half-days")
def test_three_and_a_half_days(paper):
    big = paper.reported["hardware"]["big"]
    by_steps = big["steps"] * big["seconds_per_step"] / 86400
    expect.near(by_steps, big["days"], 0.01, "days from 300 000 steps of 1 s (as printed)")


@spec("5.1-two-vocabularies")
def test_two_vocabularies(paper):
    expect.equal(paper.reported["vocabulary"], {"en_de": 37000, "en_fr": 32000}, "the two vocabularies, BPE and word-piece")


# ---- 5.3: Adam and the rate -----------------------------------------------------------------------------------------
@spec("5.3-adam-by-default")
def test_adam_by_default(subject):
    expect.equal(subject.recipe("base").optimizer, "adam", "the optimizer when the user says nothing")


@spec("5.3-betas")
def test_betas(subject):
    expect.equal(tuple(subject.recipe("base").betas or ()), (0.9, 0.98), "Adam's betas")


@spec("5.3-epsilon")
def test_epsilon(subject):
    expect.equal(subject.recipe("base").epsilon, 1e-9, "Adam's epsilon")


def _adam_path(subject, gradients, epsilon=None):
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float32))
    optimizer = subject.optimizer([parameter])
    for group in optimizer.param_groups:
        group["betas"] = (0.9, 0.98)
        group["eps"] = 1e-9 if epsilon is None else epsilon
    path = []
    for gradient in gradients:
        parameter.grad = torch.tensor([gradient])
        optimizer.step()
        path.append(parameter.detach().clone())
    return torch.cat(path)


@spec("5.3-adam-moments")
def test_adam_moments(subject):
    gradients = [0.3, -1.2, 0.7, 2.0]
    expected = torch.tensor(reference.adam(gradients, (0.9, 0.98), 1e-9, epsilon_hat=False))
    expect.close(_adam_path(subject, gradients), expected, 1e-4, "where Adam takes a parameter with step size 1")


@spec("choice-adam-epsilon-placement")
def test_adam_epsilon_placement(subject):
    gradients = [1e-8, -3e-8]
    expected = torch.tensor(reference.adam(gradients, (0.9, 0.98), 1e-9, epsilon_hat=True))
    expect.close(_adam_path(subject, gradients), expected, 1e-3, "Adam's steps for tiny gradients (epsilon beside sqrt(v), uncorrected)")


def _rates(subject, d_model, updates):
    rates = subject.learning_rates(d_model, updates)
    expect.equal(len(rates), len(updates), "rates for the updates asked for")
    return [expect.number(rate, "a learning rate") for rate in rates]


@spec("5.3-equation-3")
def test_equation_3(subject):
    updates = [1, 2, 3999, 4000, 4001, 100_000]
    for update, rate in zip(updates, _rates(subject, 512, updates)):
        expect.near(rate, reference.learning_rate(update, 512), 1e-9, f"the rate of update {update}, d_model 512")


@spec("5.3-first-update")
def test_first_update(subject):
    expect.near(_rates(subject, 512, [1])[0], 1.746928107421711e-07, 1e-9, "the rate of the first update")


@spec("5.3-linear-warm-up")
def test_linear_warm_up(subject):
    first, *others = _rates(subject, 512, [10, 20, 400, 3000])
    for update, rate in zip((20, 400, 3000), others):
        expect.near(rate / first if first else 0.0, update / 10, 1e-9, f"the rate of update {update} over that of update 10")


@spec("5.3-peak-at-warm-up")
def test_peak(subject):
    before, peak, after = _rates(subject, 512, [3999, 4000, 4001])
    expect.true(before < peak > after, "update 4000 to have the largest rate", (before, peak, after))
    expect.near(peak, 6.987712429686843e-04, 1e-9, "the largest rate")


@spec("5.3-inverse-square-root")
def test_inverse_square_root(subject):
    for update, rate in zip((16_000, 64_000), _rates(subject, 512, [16_000, 64_000])):
        expect.near(rate * math.sqrt(update), 512**-0.5, 1e-9, f"rate times square root of the number of update {update}")


@spec("5.3-rate-follows-width")
def test_rate_follows_width(subject):
    updates = [100, 4000, 300_000]
    for update, base, big in zip(updates, _rates(subject, 512, updates), _rates(subject, 1024, updates)):
        expect.near(big / base if base else 0.0, 0.5**0.5, 1e-9, f"the rate of d_model 1024 over that of 512 at update {update}")


@spec("5.3-warm-up-4000")
def test_warm_up(subject):
    expect.equal(subject.recipe("base").warmup, 4000, "warm-up steps")


@spec("5.3-schedule-by-default")
def test_schedule_by_default(subject):
    expect.equal(subject.recipe("base").follows_eq_3, True, "Eq. 3 in force when the user says nothing")


@spec("choice-no-clipping")
def test_no_clipping(subject):
    expect.equal(subject.recipe("base").clip_norm, 0.0, "the gradient norm that is clipped (0: none)")


@spec("choice-no-weight-decay")
def test_no_weight_decay(subject):
    expect.equal(subject.recipe("base").weight_decay, 0.0, "weight decay")


# ---- 5.4: dropout ---------------------------------------------------------------------------------------------------
def _masks(subject, layers=2):
    model = small_model(subject, layers=layers, dropout=0.25).train()
    with DropoutMasks() as seen:
        subject.logits(model, words(subject, 3, 5), words(subject, 3, 7))
    return seen.masks


@spec("5.4-dropout-after-each-sub-layer-and-embedding")
def test_dropout_places(subject):
    widths = [sorted(shape) for shape, _ in _masks(subject)]
    for length, count, stack in ((5, 1 + 2 * 2, "encoder"), (7, 1 + 3 * 2, "decoder")):
        found = widths.count(sorted((3, length, 16)))
        expect.equal(found, count, f"dropout masks as large as the {stack}'s states, with two layers")


@spec("5.4-dropout-nowhere-else")
def test_dropout_nowhere_else(subject):
    allowed = (sorted((3, 5, 16)), sorted((3, 7, 16)))
    others = [shape for shape, _ in _masks(subject) if sorted(shape) not in allowed]
    expect.equal(others, [], "dropout masks of any other shape")


@spec("5.4-one-rate")
def test_one_rate(subject):
    rates = sorted({rate for _, rate in _masks(subject)})
    expect.equal(rates, [0.25], "the dropout rates in force")


@spec("5.4-before-add-and-norm")
def test_before_add_and_norm(subject):
    model = small_model(subject).train()
    x, memory = states(2, 5, 16), states(2, 4, 16)
    for stack in ("encoder", "decoder"):
        for layer in subject.layers(model, stack):
            with DropoutMasks(drop_all=True):
                got = subject.encoder_layer(layer, x) if stack == "encoder" else subject.decoder_layer(layer, x, memory)
            expected = x
            for norm in subject.norms(layer):
                expected = norm(expected)
            expect.close(got, expected, TOLERANCE, f"a layer of the {stack} with everything dropped (its input, normalised)")


@spec("5.4-embedding-dropout-covers-positions")
def test_embedding_dropout(subject):
    model = small_model(subject).train()
    for stack in ("encoder", "decoder"):
        with DropoutMasks(drop_all=True):
            got = subject.embed(model, words(subject, 2, 5), stack)
        expect.close(got, torch.zeros(2, 5, 16), 0.0, f"the {stack}'s input with everything dropped")


@spec("5.4-no-dropout-in-evaluation")
def test_no_dropout_in_evaluation(subject):
    model = small_model(subject, dropout=0.5)
    with DropoutMasks() as seen:
        subject.logits(model, words(subject, 2, 5), words(subject, 2, 5))
    expect.equal([shape for shape, rate in seen.masks if rate], [], "dropout masks in evaluation")


def _dropout(name, rate):
    def check(subject):
        sizes = subject.recipe(name).sizes
        expect.true(sizes is not None, f"sizes of {name}", None)
        expect.equal(sizes.dropout, rate, f"P_drop of {name}")

    return check


@spec("5.4-base-dropout")
def test_base_dropout(subject):
    _dropout("base", 0.1)(subject)


@spec("5.4-big-dropout")
def test_big_dropout(subject):
    _dropout("big", 0.3)(subject)


@spec("6.1-big-en-fr-dropout")
def test_big_en_fr_dropout(subject):
    _dropout("big-en-fr", 0.1)(subject)


@spec("choice-no-other-dropout-by-default")
def test_no_other_dropout_by_default(subject):
    for name in ("base", "big"):
        recipe = subject.recipe(name)
        expect.equal((recipe.attention_dropout, recipe.activation_dropout), (0.0, 0.0), f"attention and activation dropout of {name}")


# ---- 5.4: label smoothing -------------------------------------------------------------------------------------------
@spec("5.4-smoothing-by-default")
def test_smoothing_by_default(subject):
    expect.equal(subject.recipe("base").smoothing, 0.1, "label smoothing when the user says nothing")


def _batch(subject, classes=10, rows=6):
    return states(rows, classes), torch.arange(rows) % (classes - subject.first_word) + subject.first_word


@spec("5.4-smoothing-definition")
def test_smoothing_definition(subject):
    logits, targets = _batch(subject)
    expected = sum(reference.smoothed_loss(row, gold, 0.1) for row, gold in zip(logits.tolist(), targets.tolist()))
    expect.near(subject.loss(logits, targets, 0.1), expected, 1e-6, "the smoothed loss of six targets, in nats")


def _optimum(subject, classes, smoothing):
    """Logits at which the loss has no gradient, for one target; found by Newton's method on the probabilities."""
    logits = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([subject.first_word])
    for _ in range(200):
        loss = subject.loss(logits, targets, smoothing)
        expect.true(isinstance(loss, torch.Tensor) and loss.requires_grad, "a loss with a gradient", expect.short(loss))
        (gradient,) = torch.autograd.grad(loss, logits)
        with torch.no_grad():
            # d loss / d logits is p - q: the best logits are log q.
            q = (torch.softmax(logits, dim=1) - gradient.double()).clamp_min(1e-12)
            logits = (q / q.sum()).log()
        logits.requires_grad_()
        if gradient.abs().max() < 1e-10:
            break
    return logits, targets


@spec("5.4-smoothing-optimum")
def test_smoothing_optimum(subject):
    logits, targets = _optimum(subject, 10, 0.1)
    best = torch.softmax(logits.detach(), dim=1)[0]
    expected = torch.tensor(reference.smoothed_target(10, int(targets), 0.1))
    expect.close(best, expected, 1e-5, "the best prediction under smoothing with 10 classes (0.91 and 0.01)")


@spec("5.4-smoothing-makes-unsure")
def test_smoothing_makes_unsure(subject):
    # At the best prediction under smoothing the right word is not certain: its perplexity is above 1.
    logits, targets = _optimum(subject, 37, 0.1)
    gold = torch.log_softmax(logits.detach(), dim=1)[0, targets[0]].item()
    expect.true(1.05 < math.exp(-gold) < 1.15, "a perplexity near 1 / 0.9 at the optimum", math.exp(-gold))
    expect.true(subject.loss(logits, targets, 0.0) > 0.05, "a cross-entropy above 0 at the optimum", "0")


@spec("5.4-smoothing-floor")
def test_smoothing_floor(subject):
    classes = 37000
    q = torch.full((1, classes), 0.1 / classes, dtype=torch.float64)
    q[0, 9] += 0.9
    expect.near(subject.loss(q.log(), torch.tensor([9]), 0.1), 1.376913, 1e-6, "the smallest loss with 37 000 classes, in nats")


@spec("5.4-uniform-prediction-costs-log-k")
def test_uniform_prediction(subject):
    _, targets = _batch(subject, classes=50)
    got = subject.loss(torch.zeros(6, 50, dtype=torch.float64), targets, 0.1)
    expect.near(got, 6 * math.log(50), 1e-6, "the loss of six uniform predictions over 50 classes")


@spec("5.4-no-smoothing-is-cross-entropy")
def test_no_smoothing(subject):
    logits, targets = _batch(subject)
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
    expect.near(subject.loss(logits, targets, 0.0), expected, 1e-6, "the loss without smoothing (cross-entropy)")


@spec("choice-padding-is-no-target")
def test_padding_is_no_target(subject):
    logits, targets = _batch(subject)
    alone = expect.number(subject.loss(logits, targets, 0.1), "the loss")
    padded = torch.cat((targets, torch.full((3,), subject.padding)))
    more = torch.cat((logits, states(3, 10)))
    expect.near(subject.loss(more, padded, 0.1), alone, 1e-9, "the loss with three targets of padding added")


@spec("5.4-smoothing-two-definitions-meet")
def test_two_definitions_meet(paper):
    # eps / (K - 1) on the others with eps (K - 1) / K is eps / K on all.
    for classes in (10, 37000):
        eps = 0.1 * (classes - 1) / classes
        other = [1 - eps if k == 0 else eps / (classes - 1) for k in (0, 1)]
        cited = [0.9 + 0.1 / classes, 0.1 / classes]
        for a, b in zip(other, cited):
            expect.near(a, b, 1e-12, f"the two definitions of smoothing with {classes} classes")


@spec("5.4-three-kinds")
def test_three_kinds(subject):
    recipe = subject.recipe("base")
    expect.true(recipe.sizes is not None and recipe.sizes.dropout > 0, "residual dropout by default", recipe.sizes)
    expect.true(bool(recipe.smoothing), "label smoothing by default", recipe.smoothing)
    model = small_model(subject, dropout=0.25).train()
    with DropoutMasks() as seen:
        subject.embed(model, words(subject, 3, 5), "encoder")
    expect.equal(len([1 for _, rate in seen.masks if rate]), 1, "dropout masks on embeddings plus positions")
