"""Proof that the specs can fail: every fault breaks exactly the claims it names, and every claim has a fault."""

import pytest

from specs.faults import argument, broken_claims, candidates, fault_subject, faults, touching
from specs.judge import judge_all, ledger, specs
from specs.subjects import find

FAULTS = list(faults().values())
# Seconds each on the student; the fast proof runs them only where they are named.
SLOW = {
    "exercise-trace-the-shapes", "3.1-encoder-depth", "3.1-decoder-depth", "3.2.1-variance-grows-with-width",
    "3.2.1-large-keys-saturate", "section4-attention-cheaper-when-n-below-d", "table1-convolution-path-dilated",
    "6.3-parser-search",
}  # fmt: skip


def test_faults_are_many_and_well_formed():
    assert len(FAULTS) >= 60
    families = {fault.family for fault in FAULTS}
    assert families >= {"attention", "stacks", "embeddings", "positions", "training", "regularisation", "inference", "counting", "paper"}
    assert len({fault.says for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.breaks, fault.id
        unknown = [claim for claim in fault.breaks if claim not in candidates(fault.about)]
        assert not unknown, (fault.id, unknown)


def test_every_claim_has_a_fault_or_a_reason_why_none_exists():
    broken = {claim for fault in FAULTS for claim in fault.breaks}
    vacuous = [claim for claim in specs() if claim not in broken and not ledger()[claim].no_fault]
    assert vacuous == []
    needless = [claim for claim in specs() if claim in broken and ledger()[claim].no_fault]
    assert needless == []


def test_the_sound_student_holds_everything():
    assert {v.state for v in judge_all(find("student")).values()} == {"holds", "untestable"}


def able_specs(fault):
    """The specs that could notice the fault: the others execute no line that it changes."""
    able = touching(fault)
    return set(candidates(fault.about).values()) if able is None else able


def slow_specs(fault):
    """Those of them that take seconds and judge no claim that the fault names."""
    return able_specs(fault) & {candidates(fault.about).get(claim) for claim in SLOW - set(fault.breaks)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault_breaks_exactly_what_it_names(fault):
    assert broken_claims(fault, able_specs(fault) - slow_specs(fault)) == set(fault.breaks)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault_breaks_none_of_the_slow_claims_that_it_does_not_name(fault):
    assert broken_claims(fault, slow_specs(fault)) == set()


def test_a_fault_is_a_subject():
    assert fault_subject("scale-missing").name == "fault:scale-missing"
    assert find("fault:scale-missing").library is not find("student").library
    with pytest.raises(ValueError, match="no-such"):
        find("fault:no-such")
    with pytest.raises(ValueError):
        fault_subject("paper-hours")  # a fault of the paper is no implementation


def test_a_fault_must_change_exactly_one_place():
    import dataclasses

    with pytest.raises(ValueError, match="0 places"):
        argument(dataclasses.replace(faults()["scale-missing"], old="no such text"))
