"""The ledger and the specs cover each other, and the oracle gives values worked out by hand."""

import inspect
import math
import re

import pytest
import torch

from specs import judge, reference, rows
from specs.judge import LEVELS, SOURCES, ledger, specs

CLAIMS = list(ledger().values())


def test_every_claim_is_well_formed():
    for claim in CLAIMS:
        assert re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", claim.id), claim.id
        assert claim.level in LEVELS and claim.source in SOURCES and claim.about in ("implementation", "paper"), claim.id
        assert re.fullmatch(r"\d(\.\d){0,2}|Appendix", claim.section), claim.id
        assert claim.statement and not claim.statement.endswith("."), claim.id
        assert bool(claim.reason) == (claim.level == "untestable"), claim.id
        assert claim.expected or claim.reason or claim.covered_by, claim.id


def test_no_claim_without_a_spec():
    bare = [c.id for c in CLAIMS if c.level != "untestable" and not c.covered_by and c.id not in specs()]
    assert bare == []


def test_no_spec_without_a_claim():
    assert [claim for claim in specs() if claim not in ledger()] == []
    claimed_twice = [c.id for c in CLAIMS if c.id in specs() and (c.covered_by or c.level == "untestable")]
    assert claimed_twice == []


def test_covered_claims_name_claims_that_have_specs():
    for claim in CLAIMS:
        assert all(other in specs() for other in claim.covered_by), claim.id


def test_specs_take_what_their_claims_are_about():
    for claim, function in specs().items():
        (argument,) = inspect.signature(function).parameters
        assert argument == {"implementation": "subject", "paper": "paper"}[ledger()[claim].about], claim


def test_every_test_function_is_a_spec_and_none_hides_another():
    functions = set(specs().values())
    for module in {inspect.getmodule(function) for function in functions}:
        for name, value in vars(module).items():
            if name.startswith("test_") and callable(value):
                assert value in functions, f"{module.__name__}.{name} is no spec"
    names = [(inspect.getmodule(f).__name__, f.__name__) for f in functions]
    assert len(set(names)) == len(names)


def test_every_source_document_is_in_the_ledger():
    assert {claim.source for claim in CLAIMS} == set(SOURCES)


@pytest.mark.parametrize("name, without, with_bias", [
    ("base", 63_045_632, 63_082_496), ("b-dk16", 55_967_744, 55_990_784), ("c-n2", 33_644_544, 33_656_832),
    ("c-d256", 26_816_512, 26_834_944), ("big", 214_171_648, 214_245_376),
])  # fmt: skip
def test_reference_counts(name, without, with_bias):
    """From the closed form, by hand: N (MHA + FFN + 2 LN) + N (2 MHA + FFN + 3 LN) + V d."""
    assert reference.parameter_count(rows.sizes(name), False) == without
    assert reference.parameter_count(rows.sizes(name), True) == with_bias


def test_reference_equations_by_hand():
    q, k, v = torch.tensor([[1.0, 0.0]]), torch.eye(2), torch.tensor([[1.0], [0.0]])
    weight = math.exp(2**-0.5) / (math.exp(2**-0.5) + 1)  # scores 1 / sqrt(2) and 0
    assert reference.attention(q, k, v).item() == pytest.approx(weight, abs=1e-15)
    assert reference.attention(q, k, v, torch.tensor([[False, True]])).item() == 0.0
    assert reference.position(1, 0, 512) == math.sin(1) and reference.position(0, 1, 512) == 1.0
    assert reference.position(100, 511, 512) == pytest.approx(math.cos(100 / 10000 ** (510 / 512)), abs=1e-15)
    assert reference.learning_rate(1, 512) == pytest.approx(1.746928107e-7, rel=1e-9)
    assert reference.learning_rate(4000, 512) == pytest.approx((512 * 4000) ** -0.5, rel=1e-12)
    assert reference.smoothed_target(10, 3, 0.1)[3] == pytest.approx(0.91) and sum(reference.smoothed_target(10, 3, 0.1)) == pytest.approx(1)
    assert reference.smoothed_loss([0.0] * 8, 2, 0.1) == pytest.approx(math.log(8))
    assert [round(reference.length_penalty(n, 0.6), 4) for n in (1, 5, 10, 20, 40)] == [1.0, 1.3587, 1.7329, 2.3544, 3.3499]
    # One step: m / (1 - b1) = g and v / (1 - b2) = g^2, so that the step is g / (|g| + eps).
    assert reference.adam([1e-8], (0.9, 0.98), 1e-9, epsilon_hat=False)[0] == pytest.approx(-1e-8 / 1.1e-8)
    assert reference.adam([1e-8], (0.9, 0.98), 1e-9, epsilon_hat=True)[0] == pytest.approx(-1 / (1 + 0.1 / 0.02**0.5))


def test_an_entry_that_matches_nothing_is_an_error(tmp_path):
    class Subject:
        deviations = tmp_path / "known.toml"

    Subject.deviations.write_text('["9.9-no-such-claim"]\nreason = "none"\nreference = "none"\n')
    with pytest.raises(ValueError, match="9.9-no-such-claim.*matches no claim"):
        judge.deviations(Subject)
