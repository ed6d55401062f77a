import json

import numpy as np
import pytest
from isocompute.frontier.data.sweeps import read_sweeps
from isocompute.frontier.posterior.density import rise
from scipy.optimize import least_squares

from benchmarks.frontier.allocation import Laboratory, uniform
from benchmarks.frontier.campaign import Case, Count, collect, counts, means
from benchmarks.frontier.dirt import KINDS
from benchmarks.frontier.harsh import KINDS as HARSH
from benchmarks.frontier.harsh import harsh, harsh_sweep
from benchmarks.frontier.power import simultaneous
from benchmarks.frontier.sweeps import rows
from benchmarks.frontier.worlds import LAST, SIZES, grid_of_worlds, sweep, world, world_with_gap


def test_the_error_of_a_mean_is_that_of_its_sweeps() -> None:
    values = np.random.default_rng(0).standard_normal(30)
    found = counts({"reward": values}, means)["reward"]
    assert found.value == pytest.approx(values.mean())
    assert found.error == pytest.approx(values.std(ddof=1) / np.sqrt(30))


def test_sweeps_to_which_a_quantity_does_not_apply_do_not_count() -> None:
    assert means({"told": np.array([1.0, np.nan, 0.0]), "never": np.full(3, np.nan)}) == {"told": 0.5}


@pytest.mark.parametrize(("value", "verdict"), [(0.96, "ok"), (0.91, "unclear"), (0.8, "missed"), (0.999, "unclear")])
def test_a_miss_within_two_standard_errors_is_unclear(value: float, verdict: str) -> None:
    assert Count(value=value, error=0.015, sweeps=100).verdict((0.92, 0.98)) == verdict


@pytest.mark.parametrize("kind", HARSH)
def test_a_harsh_world_has_a_reward_at_any_compute_and_its_sweeps_show_it(kind: str) -> None:
    truth = harsh(kind, np.random.default_rng(3))
    evals = harsh_sweep(truth, np.random.default_rng(4))
    assert sorted(evals["rollouts_per_problem"].unique()) == list(SIZES)
    for n in SIZES:
        reward = truth.reward(n, np.geomspace(1e3, 64 * LAST, 50))
        assert ((reward >= 0) & (reward <= 1)).all()
        # Two seeds of 1,200 responses; a run that collapsed shows nothing.
        ends = evals.filter(rollouts_per_problem=n, rollouts=LAST)["avg_at_4"].max()
        assert truth.failing or truth.degrees < 3 or abs(ends - truth.shown(n, np.array([LAST]))[0]) < 0.12


def test_a_campaign_goes_on_after_the_sweeps_in_its_file_apart_from_those_that_a_choice_was_made_on(tmp_path) -> None:
    asked = []

    def one(number: int) -> dict[str, float]:
        asked.append(number)
        return {"number": number, "never": np.nan}

    case, out = Case(name="a", one=one, wanted={}), tmp_path / "out.jsonl"
    assert collect(case, 2, out, first=1000)["number"].tolist() == [1000, 1001]
    collect(case, 2, out)
    assert collect(case, 4, out)["number"].tolist() == [0, 1, 2, 3]
    assert asked == [1000, 1001, 0, 1, 2, 3]
    assert {json.loads(line)["case"] for line in out.read_text().splitlines()} == {"a"}


def test_simultaneous_intervals_miss_some_pair_of_equals_in_one_sweep_of_twenty() -> None:
    rng = np.random.default_rng(1)
    wrong = [bool(simultaneous(rng.standard_normal(6) + rng.standard_normal((2000, 6)))) for _ in range(400)]
    assert 0.02 < np.mean(wrong) < 0.09


def test_simultaneous_intervals_say_which_is_higher() -> None:
    drawn = np.random.default_rng(2).standard_normal((2000, 3)) + np.array([0.0, 9.0, 0.1])
    assert simultaneous(drawn) == {(0, 1): -1, (1, 2): 1}


@pytest.mark.parametrize("kind", ["step", "peak"])
def test_a_gap_lies_between_the_named_pair(kind: str) -> None:
    truth = world_with_gap(kind, np.random.default_rng(3), gap=0.17)
    low, high = truth.named
    assert truth.gain[high] == pytest.approx(1.17 * truth.gain[low])
    assert SIZES.index(high) == SIZES.index(low) + 1
    assert len(set(truth.gain.values())) == 2


def test_a_gap_in_a_smooth_world_is_between_its_worst_and_its_best_n() -> None:
    truth = world_with_gap("parabola", np.random.default_rng(3), gap=0.17)
    low, high = truth.named
    gains = np.array(list(truth.gain.values()))
    assert (truth.gain[low], truth.gain[high]) == (gains.min(), gains.max())
    assert gains.max() == pytest.approx(1.17 * gains.min())
    assert abs(SIZES.index(high) - SIZES.index(low)) > 1
    assert np.ptp(np.diff(gains, 2)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_dirt_is_only_in_the_runs_that_it_names(kind: str) -> None:
    rng = np.random.default_rng(4)
    truth = world("smooth", rng)
    clean = sweep(truth, rng, seeds=2, deviation=0.05)
    dirty, kinds = KINDS[kind](clean, truth, 32, rng)
    assert kinds
    runs = set(clean["run_id"])
    same = {r for r in runs if clean.filter(run_id=r).equals(dirty.filter(run_id=r))}
    assert same == runs - set(kinds)


def test_a_longer_run_begins_as_the_shorter_one() -> None:
    worlds = grid_of_worlds((16, 64), np.random.default_rng(5))
    laboratory = Laboratory(number=0, worlds=worlds, ns=(8, 32))
    short, long = (laboratory.table(uniform(laboratory, 1, share)) for share in (0.25, 1.0))
    assert len(short) < len(long)
    assert short.equals(long.filter(long["rollouts"] <= 0.25 * LAST + 1))


def test_growth_with_log_compute_is_within_the_data_no_other_than_a_curve_that_levels_off() -> None:
    # In shares of the gain; of a gain of 0.3 the noise of an evaluation of 1,200 responses is 0.04.
    compute = np.arange(1, 17) / 16
    for half in (4, 10, 25):
        grown = np.log1p(compute * half) / np.log1p(half)

        def off(x: np.ndarray, grown: np.ndarray = grown) -> np.ndarray:
            top, timing, shape, tail = x
            return np.asarray(top * rise(np.exp(shape) * (np.log(compute) - timing), np.exp(tail)) - grown)

        levelled = least_squares(off, [1.5, -0.7, 0.0, -1.0], bounds=([0, -9, -3, -6], [9, 9, 3, 1]))
        assert np.sqrt(2 * levelled.cost / len(compute)) < 0.003


@pytest.mark.slow
def test_the_rows_that_advise_knows_are_those_that_this_repository_makes() -> None:
    committed = {(s.problem_set, s.model[-1], int(s.budget)): s for s in read_sweeps() if s.source != "U-statistic"}
    made = 0
    for line in rows():
        name, budget, octaves, deviation, lost = line.split(",")
        names = [key for key in committed if key[2] == int(budget) and name in (key[0], f"{key[0]}-{key[1]}")]
        (own,) = (committed[key] for key in names)
        # Draws of a posterior on another processor.
        assert (own.log2_n, own.deviation) == pytest.approx((float(octaves), float(deviation)), abs=0.15)
        assert own.lost == pytest.approx({int(n): float(r) for n, r in (p.split(":") for p in lost.split())}, abs=0.005)
        made += 1
    assert made == len(committed)
