"""The order in which problems are trained on: a function of the seed and the step, nothing else."""

from __future__ import annotations

import numpy as np
import polars as pl

from .errors import LearnerError


class ProblemOrder:
    """Shuffled passes over the problems, cut into batches of ``problems_per_batch``.

    A pass depends on the seed only, so runs whose batch sizes divide the number of problems meet the same
    problems in the same order, and a resumed run needs nothing but its step. Where the batch size does not
    divide it, each pass leaves out the problems (others each time) that do not fill a batch.

    Args:
        problems: A ``problems`` table; the order of its rows does not matter.
        problems_per_batch: B_p.
        seed: Seed of the run.

    Raises:
        LearnerError: There are fewer problems than in a batch, or a problem occurs twice.
    """

    def __init__(self, problems: pl.DataFrame, *, problems_per_batch: int, seed: int) -> None:
        if problems_per_batch > len(problems):
            raise LearnerError(
                f"problems_per_batch is {problems_per_batch}, and there are {len(problems)} training problems: "
                "a problem cannot be twice in one batch"
            )
        repeated = problems["problem_id"].is_duplicated()
        if repeated.any():
            raise LearnerError(f"problem {problems['problem_id'].filter(repeated)[0]} occurs twice among the problems")
        self._problems = problems.sort("problem_id")
        self._problems_per_batch = problems_per_batch
        self._seed = seed

    def batch(self, step: int) -> pl.DataFrame:
        """Problems of update ``step``, counted from 1, no problem twice."""
        # Batches never span two passes, so that no problem occurs twice in a batch.
        per_pass = len(self._problems) // self._problems_per_batch
        epoch, position = divmod(step - 1, per_pass)
        shuffled = np.random.default_rng([self._seed, epoch]).permutation(len(self._problems))
        return self._problems[
            np.sort(shuffled[position * self._problems_per_batch : (position + 1) * self._problems_per_batch])
        ]
