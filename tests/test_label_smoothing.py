"""Section 5.4: by hand for few entries, against torch's own, and in blocks against all at once."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from vaswani_plugin import label_smoothing
from vaswani_plugin.errors import UserError
from vaswani_plugin.label_smoothing import (
    VaswaniLabelSmoothedCrossEntropy,
    check,
    projected_smoothed_loss,
    smoothed_loss,
    smoothed_targets,
)

from .helpers import EOS, PAD, small_model


def test_targets_by_hand():
    # K = 4, eps = 0.1: 0.1 / 4 = 0.025 everywhere, 0.9 more for the gold entry
    assert smoothed_targets(torch.tensor([2, 0]), 4, 0.1, torch.float64).tolist() == [
        pytest.approx([0.025, 0.025, 0.925, 0.025]), pytest.approx([0.925, 0.025, 0.025, 0.025])
    ]


def test_loss_by_hand():
    # p = 1/8, 1/8, 1/4, 1/2: -sum q log p with q = .025, .025, .925, .025 is 2.0 log 2
    logits = torch.tensor([[0.0, 0.0, math.log(2), math.log(4)]], dtype=torch.float64)
    loss, nll = smoothed_loss(logits, torch.tensor([2]), 0.1)
    expected = (0.025 * 3 + 0.025 * 3 + 0.925 * 2 + 0.025 * 1) * math.log(2)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert nll.item() == pytest.approx(2 * math.log(2), rel=1e-12)


def test_equals_torchs_label_smoothing():
    torch.manual_seed(1)
    logits, gold = torch.randn(5, 7, dtype=torch.float64), torch.tensor([0, 3, 6, 2, 2])
    expected = F.cross_entropy(logits, gold, label_smoothing=0.2, reduction="none")
    torch.testing.assert_close(smoothed_loss(logits, gold, 0.2)[0], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_blocks_of_rows_give_the_loss_and_both_gradients_of_all_logits_at_once(monkeypatch, rows, smoothing):
    monkeypatch.setattr(label_smoothing, "ROWS", rows)
    torch.manual_seed(2)
    gold = torch.tensor([[4, 5, PAD], [2, PAD, PAD], [6, 0, 4]])
    features = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    loss, nll = projected_smoothed_loss(features, weight, gold, smoothing, PAD)
    (3 * loss).backward()
    actual = features.grad.clone(), weight.grad.clone()
    features.grad = weight.grad = None
    plain, plain_nll = smoothed_loss((features @ weight.t()).flatten(0, 1), gold.flatten(), smoothing, PAD)
    (3 * plain.sum()).backward()
    torch.testing.assert_close(loss, plain.sum(), rtol=1e-13, atol=0)
    torch.testing.assert_close(nll, plain_nll.sum(), rtol=1e-13, atol=0)
    torch.testing.assert_close(actual[0], features.grad, rtol=0, atol=1e-13)
    torch.testing.assert_close(actual[1], weight.grad, rtol=0, atol=1e-13)
    assert (features.grad[gold == PAD] == 0).all()


def test_blocks_in_single_precision_are_those_of_double(monkeypatch):
    """Where oneDNN multiplies, a few rows at a time."""
    monkeypatch.setattr(label_smoothing, "ROWS", 5)
    monkeypatch.setattr(label_smoothing, "PRODUCT_ROWS", 2)
    features, weight, gold = random_problem(tokens=23, entries=40, d_model=8)
    exact = projected_smoothed_loss(features, weight, gold, 0.1, PAD)
    expected = torch.autograd.grad(exact[0], (features, weight))
    features, weight = (x.detach().float().requires_grad_() for x in (features, weight))
    single = projected_smoothed_loss(features, weight, gold, 0.1, PAD)
    actual = torch.autograd.grad(single[0], (features, weight))
    for a, e in zip((*single, *actual), (*exact, *expected)):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), e, rtol=1e-5, atol=1e-5)


def test_validation_makes_no_gradient():
    """Of the weight neither, which is a parameter still: half of the time went there."""
    features, weight, gold = random_problem(tokens=9, entries=40, d_model=8)
    made = []

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if function is torch.ops.aten.zeros_like.default:
                made.append(result.shape)
            return result

    for training in (True, False):
        made.clear()
        with Shapes(), torch.set_grad_enabled(training):
            projected_smoothed_loss(features.detach(), weight, gold, 0.1, PAD)
        assert made == ([weight.shape] if training else [])


def test_a_second_backward_pass_is_refused():
    """The gradients are scaled in place, to hold no second matrix of the size of the dictionary."""
    features, weight = torch.randn(2, 3, requires_grad=True), torch.randn(5, 3)
    loss, _ = projected_smoothed_loss(features, weight, torch.tensor([2, 3]), 0.1, PAD)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        loss.backward()


def test_the_best_logits_are_the_smoothed_targets():
    """d loss / d logits is p - q: zero exactly where the model answers q, 'more unsure' than certain."""
    q = smoothed_targets(torch.tensor([1]), 5, 0.1, torch.float64)
    logits = q.log().requires_grad_()
    smoothed_loss(logits, torch.tensor([1]), 0.1)[0].sum().backward()
    assert logits.grad.abs().max() < 1e-15


def test_padding_alone_and_extreme_logits_are_finite():
    features = torch.ones(2, 3, requires_grad=True)
    weight = torch.full((4, 3), 1e4, requires_grad=True)
    weight.data[2] = -1e4
    loss, _ = projected_smoothed_loss(features, weight, torch.tensor([PAD, PAD]), 0.1, PAD)
    loss.backward()
    assert loss.item() == 0 and (features.grad == 0).all()
    loss, nll = projected_smoothed_loss(features, weight, torch.tensor([2, 3]), 0.1, PAD)
    loss.backward()
    assert loss.isfinite() and nll.isfinite() and features.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_single(dtype):
    torch.manual_seed(4)
    features, weight = torch.randn(40, 8), torch.randn(50, 8)
    gold = torch.randint(2, 50, (40,))
    results = []
    for cast in (torch.float32, dtype):
        f, w = features.to(dtype).to(cast).requires_grad_(), weight.to(dtype).to(cast).requires_grad_()
        loss, _ = projected_smoothed_loss(f, w, gold, 0.1, PAD)
        assert loss.dtype == torch.float32
        loss.backward()
        assert f.grad.dtype == w.grad.dtype == cast
        results.append((loss, f.grad.float(), w.grad.float()))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(results[1][0], results[0][0], rtol=4 * eps, atol=0)
    for rough, exact in zip(results[1][1:], results[0][1:]):
        assert (rough - exact).abs().max() < 8 * eps * exact.abs().max()


def test_autocast_keeps_gradients_in_the_parameters_type():
    torch.manual_seed(4)
    features, weight = torch.randn(6, 8, requires_grad=True), torch.randn(9, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = projected_smoothed_loss(features, weight, torch.arange(2, 8), 0.1, PAD)
        plain, _ = smoothed_loss(features @ weight.t(), torch.arange(2, 8), 0.1, PAD)
    loss.backward()
    assert features.grad.dtype == weight.grad.dtype == torch.float32
    torch.testing.assert_close(loss, plain.sum(), rtol=1e-2, atol=0)


def criterion(smoothing=0.1, sentence_avg=False):
    task = SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: PAD))
    return VaswaniLabelSmoothedCrossEntropy(task, smoothing, sentence_avg)


def sample():
    target = torch.tensor([[5, 6, EOS], [7, EOS, PAD]])
    previous = torch.tensor([[EOS, 5, 6], [EOS, 7, PAD]])
    source = torch.tensor([[8, 9, EOS], [PAD, 9, EOS]])
    net_input = {"src_tokens": source, "src_lengths": torch.tensor([3, 2]), "prev_output_tokens": previous}
    return {"net_input": net_input, "target": target, "ntokens": 5}


def test_the_criterion_sums_over_tokens_and_logs_bits_per_token():
    model = small_model()
    logits, _ = model(**sample()["net_input"])
    gold = sample()["target"]
    expected = F.cross_entropy(
        logits.flatten(0, 1), gold.flatten(), label_smoothing=0.1, ignore_index=PAD, reduction="sum"
    )
    loss, size, logged = criterion()(model, sample())
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert size == logged["sample_size"] == 5 and logged["nsentences"] == 2
    each, _, _ = criterion()(model, sample(), reduce=False)
    assert each.shape == (6,) and each[-1] == 0
    torch.testing.assert_close(each.sum(), expected, rtol=1e-12, atol=0)
    assert criterion(sentence_avg=True)(model, sample())[1] == 2


def test_no_smoothing_is_the_negative_log_likelihood():
    loss, _, logged = criterion(smoothing=0.0)(small_model(), sample())
    torch.testing.assert_close(loss.detach(), logged["nll_loss"], rtol=1e-14, atol=0)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_impossible_smoothing_is_refused(smoothing):
    with pytest.raises(UserError, match=r"--label-smoothing must lie in \[0, 1\)"):
        check(smoothing)


def random_problem(tokens=11, entries=13, d_model=5, dtype=torch.float64, seed=6):
    torch.manual_seed(seed)
    gold = torch.randint(2, entries, (tokens,))
    gold[::4] = PAD
    features = torch.randn(tokens, d_model, dtype=dtype, requires_grad=True)
    return features, torch.randn(entries, d_model, dtype=dtype, requires_grad=True), gold


@pytest.mark.parametrize("rows", [4, 384])
def test_both_gradients_are_those_of_finite_differences(monkeypatch, rows):
    monkeypatch.setattr(label_smoothing, "ROWS", rows)
    features, weight, gold = random_problem()
    loss = projected_smoothed_loss(features, weight, gold, 0.1, PAD)[0]
    gradients = torch.autograd.grad(loss, (features, weight))
    step = 1e-5
    for number, gradient in enumerate(gradients):
        for _ in range(5):
            direction = torch.randn_like(gradient)
            moved = []
            for sign in (1, -1):
                inputs = [features.detach(), weight.detach()]
                inputs[number] = inputs[number] + sign * step * direction
                moved.append(projected_smoothed_loss(*inputs, gold, 0.1, PAD)[0].item())
            slope = (moved[0] - moved[1]) / (2 * step)
            assert slope == pytest.approx((gradient * direction).sum().item(), rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("frozen", ["features", "weight"])
def test_a_frozen_side_gets_no_gradient_and_the_other_its_own(frozen):
    features, weight, gold = random_problem()
    projected_smoothed_loss(features, weight, gold, 0.1, PAD)[0].backward()
    both = {"features": features.grad, "weight": weight.grad}
    features.grad = weight.grad = None
    {"features": features, "weight": weight}[frozen].requires_grad_(False)
    projected_smoothed_loss(features, weight, gold, 0.1, PAD)[0].backward()
    now = {"features": features.grad, "weight": weight.grad}
    assert now.pop(frozen) is None
    for name, gradient in now.items():
        assert torch.equal(gradient, both[name])


def test_autocast_rounds_no_more_than_the_plain_formula():
    features, weight, gold = random_problem(tokens=200, entries=90, d_model=16)
    exact = torch.autograd.grad(smoothed_loss(features @ weight.t(), gold, 0.1, PAD)[0].sum(), (features, weight))
    features, weight = (x.detach().float().requires_grad_() for x in (features, weight))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = smoothed_loss(features @ weight.t(), gold, 0.1, PAD)[0].sum()
        blocks = projected_smoothed_loss(features, weight, gold, 0.1, PAD)[0]
    plain, blocks = (torch.autograd.grad(loss, (features, weight)) for loss in (plain, blocks))
    for of_plain, of_blocks, truth in zip(plain, blocks, exact):
        assert of_blocks.dtype == torch.float32
        assert (of_blocks - truth).norm() < 1.5 * (of_plain - truth).norm() < 0.05 * truth.norm()


def test_gradients_of_several_batches_add_up_as_update_freq_needs():
    model, other = small_model(), sample()
    other["target"] = other["target"].flip(0)
    plain = sum(
        F.cross_entropy(model(**batch["net_input"])[0].flatten(0, 1), batch["target"].flatten(), label_smoothing=0.1,
                        ignore_index=PAD, reduction="sum")
        for batch in (sample(), other)
    )
    expected = torch.autograd.grad(plain, list(model.parameters()))
    for batch in (sample(), other):
        criterion()(model, batch)[0].backward()
    for parameter, gradient in zip(model.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("training", [True, False])
def test_no_tensor_of_all_tokens_and_entries_ever_exists(monkeypatch, precision, training):
    rows, tokens, entries, d_model = 8, 96, 50, 4
    monkeypatch.setattr(label_smoothing, "ROWS", rows)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    features, weight, gold = random_problem(tokens, entries, d_model, dtype)
    with Largest() as largest, torch.set_grad_enabled(training), torch.autocast(
        "cpu", dtype=torch.bfloat16, enabled=precision == "autocast"
    ):
        loss, _ = projected_smoothed_loss(features, weight, gold, 0.1, PAD)
        if training:
            loss.backward()
    assert largest.elements == rows * entries < tokens * entries
    with Largest() as largest:
        smoothed_loss(features @ weight.t(), gold, 0.1, PAD)
    assert largest.elements == tokens * entries  # the spy sees what it should
