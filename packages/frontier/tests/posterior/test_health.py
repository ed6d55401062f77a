"""Health of runs: against labels of real ones, and against real sweeps that were damaged by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier import FrontierError
from isocompute.frontier.data.reading import short
from isocompute.frontier.posterior.evaluations import Run, runs_of
from isocompute.frontier.posterior.health import Kind, Thresholds, judge
from real_runs import (
    asleep,
    broken_down,
    half_above,
    in_percent,
    killed,
    labelled,
    of_minus_one_and_one,
    sweep,
    without_some,
    zero_at,
)

MISSED = {("small, easy", "n = 4, learning rate 0.00636, seed 1"): {Kind.TRAINED}}
"""Labels that the judgement does not share: one low evaluation of a run on its plateau, 0.940 between 0.993 and 0.995,
is called a spike."""


def kinds(runs: Sequence[Run]) -> dict[str, frozenset[Kind]]:
    return {h.name: h.kinds for h in judge(runs)}


@pytest.mark.slow
def test_real_runs_are_judged_as_a_reader_of_their_curves_does() -> None:
    """223 runs of 19 sweeps, each drawn beside its siblings and labelled by eye before any was judged by the code.

    65 are of language models. Evaluations: 15 trunks of the panel (its results/hard-0), 20 runs of
    four versions of the default sweep (docs/sweep.csv of three commits, the first outputs that were committed, and one
    trained since), 8 pilots of the panel's other problem sets, 2 of docs/trl.csv. Logs of training rewards: 18 runs of
    the default, 2 of TRL. The other 158 are small policies of benchmarks/frontier/small_runs.py, trained by policy
    gradients at rates up to those that break them. Nobody shaped a curve. Of the labels 189 are trained, 18 collapsed,
    16 never took off; none ended early, lacks evaluations or is on another scale: those are made by hand below.
    """
    off = {}
    for (name,), rows in labelled().group_by("sweep", maintain_order=True):
        wanted = dict(rows.select("run", "kinds").unique().iter_rows())
        runs = sweep(str(name))
        for run, health in zip(runs, judge(runs), strict=True):
            label = {Kind(kind) for kind in wanted[run.run_id].split(", ")}
            if health.kinds != label:
                off[(str(name), run.name)] = label
    assert labelled().select("sweep", "run").n_unique() == 223
    assert off == MISSED


DAMAGE = [
    (without_some, {Kind.TRAINED, Kind.MISSING_EVALUATIONS}),
    (killed, {Kind.TRAINED, Kind.ENDED_EARLY}),
    (in_percent, {Kind.RESCALED}),
    (of_minus_one_and_one, {Kind.RESCALED}),
    (half_above, {Kind.RESCALED}),
    (broken_down, {Kind.COLLAPSED}),
    (asleep, {Kind.NEVER_TOOK_OFF}),
    (zero_at(0), {Kind.TRAINED, Kind.SPIKY}),
    (zero_at(6), {Kind.TRAINED, Kind.SPIKY}),
    (zero_at(-1), {Kind.TRAINED, Kind.SPIKY}),
]


DEATHS = [killed, broken_down, in_percent, half_above]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default 1", "default 2"])
@pytest.mark.parametrize(("damage", "wanted"), DAMAGE)
def test_exactly_the_damaged_run_of_a_real_sweep_is_named(
    name: str, damage: Callable[[Run], Run], wanted: set[Kind]
) -> None:
    runs = sweep(name)
    for i in range(0, len(runs), 2):
        judged = kinds([damage(run) if j == i else run for j, run in enumerate(runs)])
        assert judged.pop(runs[i].name) == wanted
        assert set(judged.values()) == {frozenset({Kind.TRAINED})}


def test_a_run_of_the_panel_is_named_with_its_numbers() -> None:
    runs = list(sweep("panel"))
    at = next(i for i, run in enumerate(runs) if run.name == "n = 8, learning rate 0.000125, seed 0")
    runs[at] = broken_down(runs[at])
    (health,) = [h for h in judge(runs) if h.name == runs[at].name]
    assert health.failed
    assert not health.fitted
    assert health.ended_at < 0.01
    assert health.evidence == "rose from 0.070 to 0.362 at 16.4k rollouts, then fell to 0.004 by 65.5k rollouts"
    flat = [h for h in judge(runs) if Kind.NEVER_TOOK_OFF in h.kinds]
    assert len(flat) == 4
    assert all("by 65.5k rollouts, where others had gained 0." in h.evidence for h in flat)


def test_where_no_run_gained_none_failed() -> None:
    runs = [asleep(run) for run in sweep("default 2")]
    assert set(kinds(runs).values()) == {frozenset({Kind.TRAINED})}


def test_thresholds_say_where_a_failure_begins() -> None:
    runs = list(sweep("default 2"))
    runs[0] = replace(runs[0], reward=np.minimum(runs[0].reward, 0.46))
    assert not judge(runs)[0].failed
    assert judge(runs, thresholds=Thresholds(share=0.3))[0].kinds == {Kind.NEVER_TOOK_OFF}
    with pytest.raises(FrontierError, match=r"lost is 1\.5"):
        Thresholds(lost=1.5)


def test_a_run_that_ended_before_the_others_took_off_has_not_failed() -> None:
    runs = list(sweep("panel"))
    runs[0] = runs[0].without(range(6, 15))
    assert kinds(runs)[runs[0].name] == {Kind.TRAINED, Kind.ENDED_EARLY}


def test_an_end_that_may_have_been_planned_is_said_and_no_more() -> None:
    runs = [run.without(range(5 + i, 13)) for i, run in enumerate(sweep("default 1")[::2])]
    first = judge(runs)[0]
    assert first.kinds == {Kind.TRAINED}
    assert first.evidence.endswith("and ended there; another reached 12.3k")


def test_unknown_errors_are_taken_from_the_scatter() -> None:
    bare = labelled().filter(pl.col("sweep") == "panel").drop("questions", "samples")
    runs = runs_of(bare, metric="avg_at_4", unit="rollouts", split="validation")
    assert kinds(runs) == kinds(sweep("panel"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["panel", "default 1", "small, seeds", "small, easy"])
def test_four_percent_of_zeros_change_whether_no_run_failed(name: str) -> None:
    """Unless two of them end a run, which is what a collapse is."""
    runs, rng = sweep(name), np.random.default_rng(1)
    zeros = [rng.random(len(run.reward)) < 0.04 for run in runs]
    for zero in zeros:
        zero[-2] &= ~zero[-1]
    dirty = [replace(run, reward=np.where(z, 0.0, run.reward)) for run, z in zip(runs, zeros, strict=True)]
    assert [h.failed for h in judge(dirty)] == [h.failed for h in judge(runs)]


@pytest.mark.slow
@given(st.sampled_from(["panel", "default 2", "small, batches"]), st.integers(0, 23), st.sampled_from(DEATHS))
@settings(max_examples=25, deadline=None)
def test_a_healthy_run_stays_what_it_is_when_another_dies(name: str, i: int, death: Callable[[Run], Run]) -> None:
    runs = list(sweep(name))
    i %= len(runs)
    before = kinds(runs)
    runs[i] = death(runs[i])
    after = kinds(runs)
    assert all(after.values())
    assert {k: v for k, v in before.items() if k != runs[i].name} == {
        k: v for k, v in after.items() if k != runs[i].name
    }


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_the_order_of_runs_does_not_matter(random: object) -> None:
    runs = list(sweep("panel"))
    random.shuffle(runs)  # type: ignore[attr-defined]
    assert kinds(runs) == kinds(sweep("panel"))


@pytest.mark.slow
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=12), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_every_run_is_something_and_says_why(rewards: list[list[float]]) -> None:
    cell = sweep("panel")[0].cell
    runs = [
        Run(
            name=f"seed {i}",
            run_id=None,
            cell=cell,
            seed=i,
            compute=np.arange(len(r)) * 64.0,
            reward=np.array(r),
            error=np.full(len(r), 0.02),
            error_is_known=False,
        )
        for i, r in enumerate(rewards)
    ]
    for health in judge(runs):
        assert health.findings
        assert all(f.evidence for f in health.findings)


@pytest.mark.parametrize(("compute", "text"), [(920.0, "920"), (12_288.0, "12.3k"), (999_999.0, "1M"), (2.5e9, "2.5B")])
def test_amounts_have_three_digits(compute: float, text: str) -> None:
    assert short(compute) == text
