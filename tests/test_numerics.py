"""Losses and gradients stay finite where numbers or batches are extreme; where they cannot, the training says why."""

import contextlib
import math
import re

import pytest
import torch

from vaswani_plugin import checkpoint_files
from vaswani_plugin.attention import scaled_dot_product_attention
from vaswani_plugin.errors import UserError
from vaswani_plugin.label_smoothing import VaswaniLabelSmoothedCrossEntropy, projected_smoothed_loss, smoothed_loss

from .forks import Forks
from .helpers import EOS, PAD, dictionary, small_model
from .resuming import TINY, logged, state

PRECISIONS = [torch.float64, torch.float32, torch.bfloat16]


class Task:
    target_dictionary = dictionary()


def sample_of(source, target):
    """A batch as fairseq's collater makes it, from tensors with ``</s>`` at their ends and padding."""
    shifted = target.roll(1, dims=1)
    shifted[:, 0] = EOS
    return {
        "id": torch.arange(len(source)),
        "ntokens": int(target.ne(PAD).sum()),
        "target": target,
        "net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1), "prev_output_tokens": shifted},
    }


def precisely(model, precision):
    """The model in a floating-point type: its own, or under autocast for bf16, as ``--amp`` runs it on a GPU."""
    if precision == torch.bfloat16:
        return model.float(), torch.autocast("cpu", dtype=torch.bfloat16)
    return model.to(precision), contextlib.nullcontext()


def loss_and_gradients(model, sample, context=contextlib.nullcontext()):
    criterion = VaswaniLabelSmoothedCrossEntropy(Task(), 0.1)
    with context:
        loss, _, log = criterion(model, sample)
    loss.backward()
    return loss, log, [p.grad for p in model.parameters() if p.grad is not None]


W = 7  # some word
BATCHES = {
    "source of padding alone": ([[PAD, PAD, PAD], [W, W, EOS]], [[W, EOS, PAD], [W, W, EOS]]),
    "target of padding alone": ([[W, EOS, PAD], [W, W, EOS]], [[PAD, PAD, PAD], [W, W, EOS]]),
    "all sources padding": ([[PAD, PAD], [PAD, PAD]], [[W, EOS], [W, EOS]]),
    "all padding": ([[PAD, PAD], [PAD, PAD]], [[PAD, PAD], [PAD, PAD]]),
    "one token": ([[EOS]], [[EOS]]),
    "one token beside a long sentence": ([[EOS, PAD, PAD, PAD], [W, W, W, EOS]], [[EOS, PAD], [W, EOS]]),
    "padding on the left": ([[PAD, PAD, EOS], [W, W, EOS]], [[PAD, EOS], [W, EOS]]),
}


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_losses_and_gradients_of_odd_batches_are_finite(batch, precision):
    sample = sample_of(*map(torch.tensor, batch))
    model, context = precisely(small_model(), precision)
    model.train()
    loss, log, gradients = loss_and_gradients(model, sample, context)
    assert math.isfinite(loss.item()) and math.isfinite(log["nll_loss"].item())
    assert len(gradients) > 10 and all(gradient.isfinite().all() for gradient in gradients)
    if sample["ntokens"] == 0:
        assert loss.item() == 0 and not any(gradient.any() for gradient in gradients)
    else:
        assert loss.item() > 0 and any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("batch", [BATCHES["source of padding alone"], BATCHES["one token beside a long sentence"]])
def test_an_odd_sentence_leaves_its_neighbour_alone(batch):
    """The second sentence's gradient is what it is without the first, whose loss is masked out."""
    source, target = map(torch.tensor, batch)
    target[0] = PAD
    together = loss_and_gradients(small_model(), sample_of(source, target))
    alone = loss_and_gradients(small_model(), sample_of(source[1:], target[1:]))
    torch.testing.assert_close(together[0], alone[0], rtol=1e-12, atol=0)
    for a, b in zip(together[2], alone[2]):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("size", [0.0, 1.0, 1e2, 1e4, 1e18])
def test_attention_scores_of_any_size_are_finite(size, precision):
    """Scores up to 1e36; rows with all, some and no keys."""
    query, key, value = (
        (torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale)
        .to(precision).requires_grad_()
        for seed, scale in ((1, size), (2, size), (3, 1.0))
    )
    allowed = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)
    output = scaled_dot_product_attention(query, key, value, allowed)
    assert output.isfinite().all() and not output[:, :, 2].any()
    torch.testing.assert_close(output[:, :, 1], value[:, :, 1], rtol=1e-2, atol=1e-2)
    output.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))
    assert not query.grad[:, :, 2].any()


@pytest.mark.parametrize("precision", [*PRECISIONS, torch.float16], ids=str)
@pytest.mark.parametrize("logit", [1e2, 1e4, 6e4])
def test_losses_of_extreme_logits_are_exact(logit, precision):
    """One logit of ``+x`` and three of ``-x``, K = 4, eps = 0.1: the normaliser is ``x`` but for an error below
    e^-200, so gold at the large one costs eps * (3/4) * 2x and gold at a small one 2x (1 - eps + eps * 3/4)."""
    weight = torch.eye(4, dtype=precision)
    features = torch.full((2, 4), -logit, dtype=precision)
    features[:, 0] = logit
    logit = features[0, 0].double().item()
    expected = 2 * logit * (0.1 * 3 / 4 + (1 - 0.1 + 0.1 * 3 / 4))
    gold = torch.tensor([0, 1])
    features.requires_grad_()
    loss, nll = projected_smoothed_loss(features, weight, gold, 0.1, padding=3)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert nll.item() == pytest.approx(2 * logit, rel=1e-5)
    loss.backward()
    # p - q: p is one-hot at 0, q is 0.1/4 but 0.925 at gold
    expected = torch.tensor([[0.075, -0.025, -0.025, -0.025], [0.975, -0.925, -0.025, -0.025]])
    torch.testing.assert_close(features.grad.float(), expected, rtol=1e-2, atol=1e-3)
    loss, nll = smoothed_loss(features.detach(), gold, 0.1)
    assert loss.isfinite().all() and nll.sum().item() == pytest.approx(2 * logit, rel=1e-5)


def test_a_loss_is_looked_at_only_after_fairseq_met_a_gradient_that_is_not_finite():
    model = small_model()
    with torch.no_grad():
        model.decoder.output_projection.weight[5, 0] = math.nan
    model.set_num_updates(41)
    sample = {**sample_of(torch.tensor([[W, EOS]]), torch.tensor([[W, EOS]])), "id": torch.tensor([12])}
    criterion = VaswaniLabelSmoothedCrossEntropy(Task(), 0.1)
    assert criterion(model, sample)[0].isnan()
    try:
        raise FloatingPointError("gradients are Nan/Inf")
    except FloatingPointError:
        with pytest.raises(UserError, match=r"the loss of update 42 is nan; .* batch \(counted from 0\): 12$"):
            criterion(model, sample)
        criterion(small_model(), sample)  # a finite one of the same update


@pytest.mark.slow
def test_a_training_stops_at_a_loss_that_is_not_finite_and_saves_first(data_bin, tmp_path):
    forks = Forks(tmp_path)
    try:
        command = ["fairseq-train", data_bin, *TINY, "--save-dir", tmp_path / "save"]
        before = forks.run(*command, "--max-update", "3")
        assert before.returncode == 0, before.stderr
        last = (tmp_path / "save" / "checkpoint_last.pt").read_bytes()
        done = forks.run(*command, "--max-update", "9", "--lr-factor", "1e36")
    finally:
        forks.close()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    sentence = done.stderr.strip().splitlines()[-1]
    found = re.fullmatch(r"error: the loss of update (\d+) is (?:nan|inf); .*crash\.pt.* \(counted from 0\): ([\d, ]+)", sentence)
    assert found, done.stderr
    update = int(found.group(1))
    assert sorted(logged(done.stdout)) == list(range(4, update))
    sentences = [int(number) for number in found.group(2).split(", ")]
    assert len(set(sentences)) == len(sentences) > 10 and max(sentences) < 2000
    saved = tmp_path / "save" / "crash.pt"
    assert checkpoint_files.damage(saved) is None
    assert state(saved)["optimizer_history"][-1]["num_updates"] == update - 1
    assert (tmp_path / "save" / "checkpoint_last.pt").read_bytes() == last
