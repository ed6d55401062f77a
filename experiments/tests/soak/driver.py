"""The driver of a sweep of stubs: everything but the engine and the learner is what a stage runs."""

from __future__ import annotations

import resource
import sys

import polars as pl

from experiments.running import cluster, schedule
from experiments.running.tracker import Tracker
from experiments.settings import load

from ..made import PARAMS, cell
from .stub import StubActor


def main(cells: int, at_once: int, first_backoff: float) -> int:
    """Run cells, and say what processor time this process took."""
    cluster.install()
    schedule.BACKOFF_SECONDS = first_backoff
    schedule.PRUNE_SECONDS = 5.0
    # A stub loads nothing that could be compared.
    schedule.check = lambda loaded, **expected: None
    schedule.WorkerActor = StubActor
    preset = load(PARAMS, "smoke")
    resources = {"workers": at_once, "sampler": "transformers", "stall_seconds": 30.0, "start_seconds": 300.0}
    preset = preset.model_copy(update={"resources": preset.resources.model_copy(update=resources)})
    # One first evaluation serves several cells.
    swept = [cell(seed=seed, rollouts_per_problem=n) for seed in range(cells // 4) for n in (2, 4, 8, 16)]
    problems = pl.DataFrame({"problem_id": ["p"], "prompt": ["1"], "answer": ["1"]})
    try:
        with schedule.workers(preset, {"base": "model"}) as pool:
            schedule.Schedule(swept, {swept[0].origin.problems: problems}, pool, Tracker("soak"), title="soak").finish()
    except cluster.Stopped as stopped:
        print(f"{stopped}: the same command continues", file=sys.stderr)
        return stopped.exit_code
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(f"driver: {used.ru_utime + used.ru_stime:.1f} s of processor time", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
