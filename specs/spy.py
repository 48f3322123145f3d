"""Looking at a computation from below, so that it need not cooperate: operations and dropout masks as torch runs them."""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:  # torch before 2.3
    from types import SimpleNamespace

    SDPBackend = SimpleNamespace(MATH=None)

    def sdpa_kernel(_):
        return torch.backends.cuda.sdp_kernel(enable_flash=False, enable_mem_efficient=False, enable_math=True)


ARITHMETIC_FREE = ("view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "select", "slice", "detach", "alias", "split")


class Operations(TorchDispatchMode):
    """Counts dispatched operations in `count`, views left out."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__.lstrip("_").removesuffix("_copy")
        if name not in ARITHMETIC_FREE:
            self.count += 1
        return function(*args, **(kwargs or {}))


class DropoutMasks(TorchDispatchMode):
    """Records the shape and rate of each dropout mask; with `drop_all`, every mask drops everything."""

    def __init__(self, drop_all=False):
        super().__init__()
        self.drop_all = drop_all
        self.masks = []  # (shape, probability of dropping)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        if name in ("bernoulli_", "bernoulli"):
            keep = args[1] if len(args) > 1 else kwargs.get("p", 0.5)  # torch leaves out what is the default
            if isinstance(keep, float):
                self.masks.append((tuple(args[0].shape), round(1 - keep, 6)))
                if self.drop_all:
                    return args[0].zero_() if name == "bernoulli_" else torch.zeros_like(args[0])
        elif name == "native_dropout" and args[2]:
            self.masks.append((tuple(args[0].shape), round(args[1], 6)))
            if self.drop_all:
                return torch.zeros_like(args[0]), torch.zeros_like(args[0], dtype=torch.bool)
        elif name == "lt" and args[0].dtype == torch.int32:  # 32-bit random numbers, kept where below a threshold
            self.masks.append((tuple(args[0].shape), round(1 - (args[1] + 2**31) / 2**32, 6)))
            if self.drop_all:
                return torch.zeros_like(args[0], dtype=torch.bool)
        return function(*args, **kwargs)


@contextlib.contextmanager
def calls(modules):
    """The list of these modules' names (dictionary keys) in the order in which they are called."""
    seen = []
    hooks = [
        module.register_forward_pre_hook(lambda *_, name=name: seen.append(name)) for name, module in modules.items()
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def depends(function, x, tolerance=0.0):
    """Which input positions each output position depends on: `[t, d]` -> `[t', d']` gives boolean `[t', t]`.

    By the Jacobian of a random projection of each output row, so that no entry cancels by symmetry.
    """
    x = x.detach().clone().requires_grad_()
    output = function(x)
    direction = torch.randn(output.shape[1:], dtype=output.dtype)
    rows = []
    for row in output:
        (gradient,) = torch.autograd.grad((row * direction).sum(), x, retain_graph=True, allow_unused=True)
        gradient = torch.zeros_like(x) if gradient is None else gradient
        rows.append(gradient.abs().amax(dim=1) > tolerance)
    return torch.stack(rows)


def multiply_accumulates(function):
    """Multiply-accumulates of the matrix products that `function` runs, fused attention taken apart."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops() // 2


def operations_started(function):
    """How many operations `function` starts; fused attention is taken apart, since torch chooses it by size."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Operations() as seen:
        function()
    return seen.count
