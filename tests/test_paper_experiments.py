"""The small experiments of the paper: figures worked out by hand, and files that a person gets."""

import math

import paper_numbers
import pytest
import torch

from .helpers import REPOSITORY, run

NAMES = ["variance", "saturation", "positions", "schedule", "table1", "masks", "shapes", "parameters", "cost"]


def test_variance_of_scores_is_the_width_and_scaling_makes_it_one():
    for width, (unscaled, scaled) in paper_numbers.score_variance([4, 16, 64]).items():
        # Standard error of the variance over 200000 pairs: width * sqrt((2 + 6 / width) / 200000) < 0.0042 width.
        assert unscaled == pytest.approx(width, rel=0.02)
        assert scaled == pytest.approx(1, rel=0.02)


def test_softmax_figures_of_an_even_and_of_a_hard_softmax():
    largest, entropy, jacobian = paper_numbers._softmax_figures(torch.full((1, 1, 3, 4), 0.25, dtype=torch.float64))
    assert (largest, entropy) == pytest.approx((0.25, math.log(4)))
    # diag(1/4) - 1/16: four entries of 3/16, twelve of -1/16.
    assert jacobian == pytest.approx(math.sqrt(4 * (3 / 16) ** 2 + 12 * (1 / 16) ** 2))
    assert paper_numbers._softmax_figures(torch.tensor([[[[1.0, 0.0]]]])) == (1, 0, 0)


def test_saturation_is_the_unscaled_softmax_s():
    unscaled, scaled = (paper_numbers.saturation([512])[512][kind] for kind in ("unscaled", "scaled"))
    assert unscaled[0] > 0.9 > 0.2 > scaled[0]
    assert unscaled[1] < 0.25 and scaled[1] > 3.3
    assert unscaled[2] < scaled[2] / 20


def test_products_of_positions_depend_on_their_distance_alone():
    for offset, (least, largest) in paper_numbers.position_products().items():
        # sum over pairs of cos(offset * frequency)
        expected = sum(math.cos(offset / 10_000 ** (2 * pair / 512)) for pair in range(256))
        assert (least, largest) == pytest.approx((expected, expected), abs=1e-9)


def test_wavelengths_follow_the_formula_and_end_below_the_text_s_figure():
    waves = paper_numbers.wavelengths(512)
    assert waves[0] == pytest.approx(2 * math.pi)
    assert waves[1] / waves[0] == pytest.approx(1.036633, abs=1e-6)
    assert waves[-1] == pytest.approx(2 * math.pi * 10_000 ** (510 / 512), rel=1e-9)
    assert waves[-1] < 2 * math.pi * 10_000


def test_schedule_of_equation_3():
    rates = paper_numbers.schedule([(512, 4000), (1024, 4000)], [1, 4000, 100_000])
    assert rates[512, 4000] == pytest.approx([1.746928e-7, 6.987712e-4, 1.397542e-4], rel=1e-6)
    assert rates[1024, 4000][1] == pytest.approx(4.941059e-4, rel=1e-6)


def test_table_1_with_numbers():
    table = paper_numbers.table_1(n=81, d=512, k=3, r=16)
    assert table == {
        "self-attention": (81 * 81 * 512, 1, 1),
        "recurrent": (81 * 512 * 512, 81, 80),
        "convolutional": (3 * 81 * 512 * 512, 1, 4),  # 3^4 = 81
        "self-attention (restricted)": (16 * 81 * 512, 1, 10),  # 80 positions, 8 a layer
    }
    assert paper_numbers.longest_path("convolutional, not dilated", 81, 3, 16) == 40  # 80 positions, 2 a layer
    assert paper_numbers.longest_path("convolutional", 512, 8, 16) == 3


def test_attention_and_recurrence_cost_the_same_at_n_equal_d():
    ratios = [paper_numbers.COMPLEXITY["self-attention"](n, 512, 3, 16)
              / paper_numbers.COMPLEXITY["recurrent"](n, 512, 3, 16) for n in (64, 512, 131_072)]
    assert ratios == [0.125, 1, 256]


def test_masks_of_three_source_and_two_target_tokens():
    visible = {name: (weights > 0).tolist() for name, weights in paper_numbers.attention_maps().items()}
    assert visible == {
        "encoder self-attention": [[True] * 3] * 3,
        "masked decoder self-attention": [[True, False], [True, True]],
        "encoder-decoder attention": [[True] * 3] * 2,
    }
    for weights in paper_numbers.attention_maps().values():
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(weights)))


def test_shapes_of_a_batch():
    trace = dict(paper_numbers.shape_trace())
    assert trace["encoder self attention, weights"] == (32, 8, 40, 40)
    assert trace["decoder self attention, weights"] == (32, 8, 50, 50)
    assert trace["decoder cross attention, weights"] == (32, 8, 50, 40)
    assert trace["encoder feed forward, inner"] == (32, 40, 2048)
    assert trace["encoder feed forward residual, norm"] == (32, 40, 512)
    assert trace["decoder feed forward residual, norm"] == (32, 50, 512)
    assert trace["logits"] == (32, 50, 37_000)


def test_shares_of_the_base_model():
    shares = paper_numbers.parameter_shares()
    assert shares["vaswani2017"] == {
        "attention": 18 * 4 * 512 * 512,
        "feed-forward": 12 * (2 * 512 * 2048 + 2048 + 512),
        "normalisation": 30 * 2 * 512,
        "embeddings": 37_000 * 512,
        "positions": 0,
    }
    assert shares["vaswani2017_e_learned"]["positions"] == 2 * 1024 * 512


def test_training_cost_of_table_2():
    base, big = paper_numbers.training_cost().values()
    assert base["from hours"] == pytest.approx(12 * 3600 * 8 * 9.5e12)
    assert f"{base['from hours']:.1e}" == "3.3e+18" and f"{big['from hours']:.1e}" == "2.3e+19"
    assert f"{base['from steps']:.1e}" == "3.0e+18"
    assert base["hours from steps"] == pytest.approx(11.11, abs=0.01)
    assert base["counted"] == 6 * 63_045_632 * 25_000 * 100_000


def script(*arguments):
    return run("python", REPOSITORY / "scripts" / "paper_experiments.py", *arguments)


def test_the_script_writes_a_text_and_a_picture_for_each_experiment(tmp_path):
    result = script(tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{n}.{e}" for n in NAMES for e in ("txt", "png"))
    for name in NAMES:
        assert (tmp_path / f"{name}.txt").read_text() in result.stdout
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "6.987712e-04" in (tmp_path / "schedule.txt").read_text()
    assert "32 x 8 x 50 x 40" in (tmp_path / "shapes.txt").read_text()
    assert "DEBUG" not in result.stdout + result.stderr


def test_sizes_that_make_no_table_are_refused_in_one_sentence(tmp_path):
    result = script(tmp_path, "-k", 1)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "paper_experiments.py: -k must be at least 2, not 1"
    assert "Traceback" not in result.stderr
