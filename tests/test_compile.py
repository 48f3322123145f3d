"""torch.compile of the model: the same numbers in training and in evaluation, with and without padding."""

import pytest
import torch

from .helpers import EOS, PAD, small_model

SOURCE = torch.tensor([[8, 9, 7, EOS], [PAD, PAD, 9, EOS]])
PREVIOUS = torch.tensor([[EOS, 5, 6], [EOS, 7, PAD]])


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("source", [SOURCE, SOURCE[:1]], ids=["padded", "unpadded"])
def test_compiled_model_has_the_logits_and_gradients_of_the_model(source):
    previous = PREVIOUS[: len(source)]
    model = small_model(encoder_layers=1, decoder_layers=1)
    logits, _ = model(source, None, previous)
    expected = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    # The backend "aot_eager" traces forward and backward as the default one does, and compiles no C++.
    compiled, _ = torch.compile(model, backend="aot_eager")(source, None, previous)
    torch.testing.assert_close(compiled, logits, rtol=0, atol=1e-12)
    for actual, gradient in zip(torch.autograd.grad(compiled.square().sum(), list(model.parameters())), expected):
        torch.testing.assert_close(actual, gradient, rtol=0, atol=1e-12)


def test_compiled_model_drops_in_training():
    model = small_model(encoder_layers=1, decoder_layers=1, dropout=0.5).train()
    compiled = torch.compile(model, backend="aot_eager")
    first, second = (compiled(SOURCE, None, PREVIOUS)[0] for _ in range(2))
    assert not torch.equal(first, second)
    (first + second).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.slow
def test_compiled_by_the_default_backend_trains_with_dropout():
    model = small_model(encoder_layers=1, decoder_layers=1, dropout=0.1).float()
    compiled = torch.compile(model)
    torch.testing.assert_close(
        compiled(SOURCE, None, PREVIOUS)[0], model(SOURCE, None, PREVIOUS)[0], rtol=1e-4, atol=1e-5
    )
    compiled.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    gold = torch.tensor([[5, 6, EOS], [7, EOS, PAD]])
    losses = []
    for _ in range(30):
        logits, _ = compiled(SOURCE, None, PREVIOUS)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), gold.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
