"""Section 5.4: by hand for few entries, against torch's own, and in blocks against all at once."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

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
