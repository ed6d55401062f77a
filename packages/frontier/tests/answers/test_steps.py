"""The Playbook's three steps of a fitted sweep: n*, the smallest B_p of which no run failed, the rest to M."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Fit, FrontierError
from isocompute.frontier.answers.steps import three_steps
from isocompute.frontier.cli import main

from ..conftest import TRUTH, quick, run

pytestmark = pytest.mark.slow("fits")

SIZES = (2, 4, 8)


def sweep(*sizes: int, failing: int = 0) -> pl.DataFrame:
    """Two n at every B_p, three seeds each; one run of n = 16 collapses at each B_p up to ``failing``."""
    rng, parts, compute = np.random.default_rng(0), [], 2048 * np.arange(11)
    for n, (start, asymptote, tau) in TRUTH.items():
        for size in sizes:
            for seed in range(3):
                reward = start + (asymptote - start) * (1 - np.exp(-compute / tau)) + rng.normal(0, 0.01, len(compute))
                if n == 16 and seed == 1 and size <= failing:
                    reward[4:] = 0.02
                own = {"rollouts_per_problem": n, "problems_per_batch": size, "seed": seed}
                parts.append(run(compute, np.clip(reward, 0, 1), **own, run_id=f"{n}x{size}s{seed}"))
    step = pl.col("rollouts") // (pl.col("problems_per_batch") * pl.col("rollouts_per_problem"))
    return pl.concat(parts).with_columns(step=step, tokens=10 * pl.col("rollouts"))


@pytest.fixture(scope="module")
def fitted() -> Fit:
    return quick(sweep(*SIZES, failing=2))


def test_the_smallest_batch_of_which_no_run_failed_gets_the_rest_of_the_budget(fitted: Fit) -> None:
    found = three_steps(fitted, 20_480)
    assert found.n_star == 16
    assert found.probability_best > 0.9
    assert [(s.problems_per_batch, s.failed, s.runs) for s in found.sizes] == [(2, 1, 3), (4, 0, 3), (8, 0, 3)]
    assert found.smallest is not None
    assert (found.smallest.problems_per_batch, found.smallest.update_steps) == (4, 320)
    assert found.lines()[-1] == "At 20.5k rollouts use n = 16, B_p = 4, M = 320"
    assert "not stable: 2 (1 of 3 runs failed" in found.lines()[1]
    # A smaller one than one that failed is not worth a run.
    assert found.to_run == ()
    # Ten tokens each.
    assert three_steps(fitted, 204_800, unit="tokens").used.update_steps == 320


def test_its_probability_of_failure_has_an_interval_which_is_wider_than_a_point_where_none_failed(
    fitted: Fit,
) -> None:
    sizes = three_steps(fitted, 20_480).sizes
    for size in sizes:
        low, high = size.failure_interval
        assert 0 < low < size.failure < high < 1
    assert sizes[0].failure > sizes[1].failure
    # Of three runs without a failure a rate of a tenth cannot be excluded.
    assert sizes[1].failure_interval[1] > 0.1


def test_of_one_batch_the_second_step_is_not_answered_and_its_cells_are_named() -> None:
    found = three_steps(quick(sweep(8)), 20_480)
    assert found.smallest is None
    assert found.to_run == (4, 2)
    assert "cannot be answered, since B_p = 8 alone was run (none of 3 runs failed" in found.lines()[1]
    assert "n = 16 with B_p = 4 and B_p = 2, 3 seeds each to 20.5k rollouts" in found.lines()[1]
    assert found.used.update_steps == 160
    assert "whether a smaller B_p is stable is not known" in found.lines()[-1]


def test_where_every_batch_had_a_failure_none_is_called_stable() -> None:
    found = three_steps(quick(sweep(2, 8, failing=8)), 20_480)
    assert found.n_star == 16
    assert found.smallest is None
    assert found.to_run == (16,)
    assert found.lines()[1].startswith("2. Smallest stable B_p of n = 16: none; not stable: 2 (1 of 3 runs failed")
    assert found.lines()[-1].endswith("none is stable")


def test_steps_of_a_fit_in_tokens_are_refused(fitted: Fit) -> None:
    with pytest.raises(FrontierError, match="fit is in tokens"):
        three_steps(replace(fitted, unit="tokens"), 204_800)


def test_one_command_prints_them_and_writes_them(
    fitted: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted.save(tmp_path)
    out = tmp_path / "answer.json"
    assert main(["prescribe", str(tmp_path), "--budget", "20480", "--three-steps", "--json", str(out)]) == 0
    written = json.loads(out.read_text())
    assert capsys.readouterr().out.splitlines() == written["three_steps"]["lines"]
    assert written["three_steps"]["smallest_stable"] == 4
    assert [size["stable"] for size in written["three_steps"]["problems_per_batch"]] == [False, True, True]
    assert main(["prescribe", str(tmp_path), "--budget", "20480", "--json", str(out)]) == 0
    assert "three_steps" not in json.loads(out.read_text())
