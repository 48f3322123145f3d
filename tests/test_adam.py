"""Section 5.3: the optimizer."""

import pytest
import torch
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

from specs import reference
from vaswani_plugin.adam import Adam, VaswaniAdam, VaswaniAdamConfig


def parameters(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 3, generator=generator, dtype=dtype, requires_grad=True) for _ in range(3)]


def follow(optimizer, owned, steps):
    """Take these steps: made-up gradients and a rate for each, whoever follows."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        optimizer.param_groups[0]["lr"] = 1e-3 * step
        for parameter in owned:
            size = 10.0 ** torch.randint(-11, 2, parameter.shape, generator=generator)  # also far below epsilon
            parameter.grad = size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        optimizer.step()


def test_by_hand():
    """beta = (0.5, 0.75), epsilon 0.5, gradients 1 and 2: m 0.5, 1.25; v 0.25, 1.1875."""
    x = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    adam = Adam([x], lr=1.0, betas=(0.5, 0.75), eps=0.5, weight_decay=0.0)
    x.grad = torch.tensor([1.0], dtype=torch.float64)
    adam.step()
    assert x.item() == pytest.approx(-0.5)  # sqrt(0.25) / 0.5 * 0.5 / (0.5 + 0.5)
    x.grad = torch.tensor([2.0], dtype=torch.float64)
    adam.step()
    second = (1 - 0.75**2) ** 0.5 / (1 - 0.5**2) * 1.25 / (1.1875**0.5 + 0.5)
    assert x.item() == pytest.approx(-0.5 - second)
    assert adam.param_groups[0]["eps"] == 0.5


def test_equals_the_reference_of_the_specs():
    x = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    adam = Adam([x], lr=1.0, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.0)
    gradients, places = [1e-3, -2e-3, 5e-4, 1.0], []
    for gradient in gradients:
        x.grad = torch.tensor([gradient], dtype=torch.float64)
        adam.step()
        places.append(x.item())
    assert places == pytest.approx(reference.adam(gradients, (0.9, 0.98), 1e-3, epsilon_hat=True))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_takes_the_steps_of_fairseqs_adam(weight_decay):
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    values = dict(adam_betas="(0.9, 0.98)", adam_eps=1e-9, weight_decay=weight_decay, lr=[1.0])
    follow(VaswaniAdam(VaswaniAdamConfig(**values), ours).optimizer, ours, range(1, 8))
    follow(FairseqAdam(FairseqAdamConfig(tpu=False, **values), theirs).optimizer, theirs, range(1, 8))
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


def test_hooks_of_others_run_once():
    torch.optim.Adam(parameters(), lr=1.0)  # from here on torch runs hooks around Adam.step, too
    x, seen = parameters(), []
    adam = Adam(x, lr=0.5, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    adam.register_step_pre_hook(lambda optimizer, *_: seen.append(optimizer.param_groups[0]["lr"]))
    follow(adam, x, [1, 2])
    assert seen == pytest.approx([1e-3, 2e-3])


def test_goes_on_from_its_state():
    settings = dict(lr=1.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    straight, resumed = parameters(), parameters()
    follow(Adam(straight, **settings), straight, [1, 2, 3])
    first = Adam(resumed, **settings)
    follow(first, resumed, [1, 2])
    second = Adam(resumed, **settings)
    second.load_state_dict(first.state_dict())
    follow(second, resumed, [3])
    for a, b in zip(straight, resumed):
        assert torch.equal(a, b)
