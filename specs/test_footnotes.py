"""Footnote 4 of Section 3.2.1 and the wavelengths of Section 3.5: the mathematics behind two claims, on the paper itself."""

import math

import torch

from specs import expect, reference
from specs.judge import spec


@spec("3.2.1-variance-grows-with-width")
def test_variance_grows(paper):
    # 200 000 pairs: relative standard deviation of the estimate at most 0.42 % (d_k = 4); 2.5 % is above five of them.
    for d_k in (4, 16, 64, 512):
        n = 200_000 if d_k <= 64 else 40_000  # relative standard deviation 0.71 % at 40 000
        tolerance = 0.025 if d_k <= 64 else 0.04
        products = (torch.randn(n, d_k) * torch.randn(n, d_k)).sum(1)
        expect.near(products.var().item(), d_k, tolerance, f"the variance of q.k with d_k = {d_k}")
        expect.near(products.var().item() / d_k, 1.0, tolerance, "the variance of q.k / sqrt(d_k)")
        expect.true(abs(products.mean().item()) < 0.03 * math.sqrt(d_k), "a mean near 0", products.mean().item())


def _saturation(d_k, scaled):
    q, k = torch.randn(1000, 1, d_k), torch.randn(1000, 50, d_k)
    scores = (q @ k.mT).squeeze(1).double()
    p = torch.softmax(scores / math.sqrt(d_k) if scaled else scores, dim=1)
    jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return p.amax(1).mean().item(), jacobian.flatten(1).norm(dim=1)


@spec("3.2.1-large-keys-saturate")
def test_large_keys_saturate(paper):
    d_k = paper.reported["sizes"]["base"]["d_k"]
    expect.true(_saturation(d_k, False)[0] > 0.7, "unscaled scores to give one key most of the weight at d_k = 64", "less")
    expect.true(_saturation(d_k, True)[0] < 0.2, "scaled scores not to", "more")
    flat, live = (_saturation(512, scaled)[1].median().item() for scaled in (False, True))
    expect.true(flat < 0.05 * live, "the median gradient without scaling to be tiny at d_k = 512", (flat, live))


@spec("contradiction-gradients-at-64")
def test_gradients_at_64(paper):
    # At the paper's own d_k the mean gradient does not vanish without the scale: what it warns of shows in wider keys.
    d_k = paper.reported["sizes"]["base"]["d_k"]
    unscaled, scaled = (_saturation(d_k, s)[1].mean().item() for s in (False, True))
    expect.true(0.8 < unscaled / scaled < 1.25, "mean gradients alike with and without the scale at d_k = 64", (unscaled, scaled))


@spec("contradiction-last-wavelength")
def test_last_wavelength(paper):
    for name, last in (("base", 9646.6), ("big", 9821.7)):
        d_model = paper.reported["sizes"][name]["d_model"]
        expect.near(10000 ** ((d_model - 2) / d_model), last, 1e-5, f"the last wavelength over 2 pi by the formula, {name}")
    expect.true(10000 ** ((d_model - 2) / d_model) < 10000, "the text's 10000 times 2 pi never to be reached", "reached")


@spec("3.5-offset-is-a-rotation")
def test_rotation(paper):
    d_model = 16
    table = reference.positions(400, d_model)
    for k in (1, 17, 300):
        rotated = torch.empty(400 - k, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            angle = k / 10000 ** (i / d_model)
            s, c = table[: 400 - k, i], table[: 400 - k, i + 1]
            rotated[:, i] = s * math.cos(angle) + c * math.sin(angle)
            rotated[:, i + 1] = c * math.cos(angle) - s * math.sin(angle)
        expect.close(rotated, table[k:], 1e-11, f"PE[pos] rotated by {k} frequencies (PE[pos + {k}])")
