"""The same training on the other package of fairseq, the one that is compiled where there is no wheel of the first.

Elsewhere than here the whole suite runs on that package (README, "Versions"); this shows on one machine that models go
from one to the other.
"""

import json
import re
import subprocess
import sys

import pytest

from vaswani_plugin import toolkit

from .helpers import PLUGIN, REPOSITORY, succeed
from .resuming import TINY, logged, same_tensors

pytestmark = pytest.mark.slow

NAME, VERSION = "fairseq-fixed", "0.12.3.1"
UPDATES = 6


@pytest.fixture(scope="module")
def other():
    """The folder of the other package, compiled once and kept for later runs."""
    if toolkit.fairseq_distribution()[0] == NAME:
        pytest.skip(f"this environment has {NAME} already")
    import torch

    # Compiled code fits one Python and one torch.
    build = f"{NAME}-{VERSION}-{sys.implementation.cache_tag}-torch-{torch.__version__.split('+')[0]}"
    folder = REPOSITORY / ".toolkits" / build
    if not folder.is_dir():
        temporary = folder.with_suffix(".part")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--upgrade", "--target",
             str(temporary), f"{NAME}=={VERSION}"], capture_output=True, text=True, timeout=1800,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        temporary.rename(folder)
    return folder


def train(data, folder, updates, package):
    output = succeed("fairseq-train", data, *TINY, "--save-dir", folder, "--max-update", updates, "--no-epoch-checkpoints",
                     toolkit=package)
    return logged(output)


@pytest.fixture(scope="module")
def whole(data_bin, tmp_path_factory):
    """A training on this environment's own package: its log, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return train(data_bin, folder, UPDATES, None), folder


def test_the_plugin_says_which_package_it_runs_on(other):
    """Both are installed; the first on Python's path is the one in use."""
    for package, name in ((other, NAME), (None, toolkit.fairseq_distribution()[0])):
        done = subprocess.run([sys.executable, "-m", "vaswani_plugin"], capture_output=True, text=True, cwd=REPOSITORY,
                              env={"PYTHONPATH": str(package)} if package else {})
        assert done.returncode == 0, done.stderr
        assert re.search(rf"^toolkit +{name} 0\.12", done.stdout, flags=re.MULTILINE)


def test_both_train_alike(data_bin, other, whole, tmp_path):
    log, folder = whole
    assert len(log) == UPDATES
    assert train(data_bin, tmp_path, UPDATES, other) == log
    assert same_tensors(tmp_path / "checkpoint_last.pt", folder / "checkpoint_last.pt")


@pytest.mark.parametrize("first", ["this", "other"])
def test_a_training_goes_on_with_the_other(data_bin, other, whole, tmp_path, first):
    packages = [None, other] if first == "this" else [other, None]
    log, folder = whole
    half = UPDATES // 2
    assert train(data_bin, tmp_path, half, packages[0]) == {update: log[update] for update in range(1, half + 1)}
    assert train(data_bin, tmp_path, UPDATES, packages[1]) == {update: log[update] for update in range(half + 1, UPDATES + 1)}
    assert same_tensors(tmp_path / "checkpoint_last.pt", folder / "checkpoint_last.pt")


def test_the_other_translates_and_validates_alike(data_bin, other, whole):
    checkpoint = whole[1] / "checkpoint_last.pt"
    common = ["--user-dir", PLUGIN, "--task", "vaswani_translation", "--path", checkpoint, "--num-workers", "0", "--cpu"]
    hypotheses, losses = [], []
    for package in (None, other):
        output = succeed("fairseq-generate", data_bin, *common, "--gen-subset", "test", toolkit=package)
        hypotheses.append(sorted(line for line in output.split("\n") if line[:2] in ("S-", "H-", "P-")))
        output = succeed("fairseq-validate", data_bin, *common, "--log-format", "json", "--max-tokens", "600", toolkit=package)
        losses.append([json.loads(found)["valid_nll_loss"] for found in re.findall(r"(\{.*valid_nll_loss.*\})", output)])
    assert len(hypotheses[0]) == 3 * 20 and hypotheses[0] == hypotheses[1]
    assert losses[0] and losses[0] == losses[1]
