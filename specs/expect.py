"""Checks that fail with a sentence, whatever the implementation returned."""

import math

import torch


class Broken(Exception):
    """A claim does not hold; `expected` and `got` are phrases that complete a sentence."""

    def __init__(self, expected, got):
        super().__init__(f"expected {expected}, got {got}")
        self.expected, self.got = expected, got


def tensor(value, shape, what):
    """`value` if it is a finite floating-point tensor of `shape` (None: any size), as float64; otherwise Broken."""
    described = f"{what}: a floating-point tensor of shape {tuple('?' if n is None else n for n in shape)}"
    if not isinstance(value, torch.Tensor):
        raise Broken(described, f"{type(value).__name__} {short(value)}")
    if not value.is_floating_point():
        raise Broken(described, f"dtype {value.dtype}")
    if value.dim() != len(shape) or any(n is not None and n != m for n, m in zip(shape, value.shape)):
        raise Broken(described, f"shape {tuple(value.shape)}")
    if not value.isfinite().all():
        raise Broken(f"{what} to be finite", "NaN or infinity")
    return value.double()


def number(value, what):
    """`value` as a float if it is a finite number; otherwise Broken."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Broken(f"{what} to be a number", f"{type(value).__name__} {short(value)}")
    if not math.isfinite(value):
        raise Broken(f"{what} to be finite", value)
    return float(value)


def close(value, expected, tolerance, what):
    """Every entry of `value` within `tolerance` (absolute) of the tensor `expected`."""
    expected = expected.detach().double()
    value = tensor(value, expected.shape, what).detach()
    error = (value - expected).abs()
    if error.numel() and error.max() > tolerance:
        at = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
        raise Broken(
            f"{what} to be {expected[at].item():.8g} at {list(at)} (within {tolerance:g})", f"{value[at].item():.8g}"
        )


def near(value, expected, relative, what):
    """The number `value` within `relative` of `expected` (absolute where `expected` is 0)."""
    value = number(value, what)
    if abs(value - expected) > relative * (abs(expected) or 1.0):
        raise Broken(f"{what} to be {expected:.9g} (within {relative:g} of it)", f"{value:.9g}")


def equal(value, expected, what):
    """`value == expected`, for anything but tensors."""
    if type(value) is not type(expected) and not (isinstance(value, (int, float)) and isinstance(expected, (int, float))):
        raise Broken(f"{what} to be {short(expected)}", short(value))
    if value != expected:
        raise Broken(f"{what} to be {short(expected)}", short(value))


def true(condition, expected, got):
    """`condition`, described by the two phrases."""
    if not condition:
        raise Broken(expected, got)


def short(value, limit=120):
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
