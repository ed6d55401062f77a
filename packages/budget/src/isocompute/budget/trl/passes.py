"""When a ``GRPOTrainer`` generates, and which optimizer steps use it.

An optimizer step is several passes (forward and backward over a micro-batch). The trainer generates before a pass whose
number, counted from the start of its process, is a multiple of ``steps_per_generation × num_iterations``, and before
the first pass of a process that has no rollouts yet (``GRPOTrainer._prepare_inputs``). So a run that is resumed
generates at once and then at other steps than before. The last optimizer step of an epoch has fewer passes where the
epoch's do not divide evenly (``Trainer._run_epoch``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The passes of a run.

    Attributes:
        accumulation: Passes of an optimizer step.
        every: Passes from one generation to the next.
        epoch_passes: Passes of an epoch.
        epoch_steps: Optimizer steps of an epoch.
    """

    accumulation: int
    every: int
    epoch_passes: int
    epoch_steps: int

    def of_step(self, place: int) -> int:
        """Passes of the optimizer step at a place in its epoch, from 0."""
        last = place % self.epoch_steps == self.epoch_steps - 1
        return self.epoch_passes % self.accumulation or self.accumulation if last else self.accumulation

    def shares(self, place: int, *, left: int, lasts: int) -> tuple[int, ...]:
        """In how many passes of its step, and of those after it, a generation is used.

        Args:
            place: Place of the step in its epoch.
            left: Passes of the step that are still to come.
            lasts: Passes that use the generation.
        """
        used = [min(left, lasts)]
        while sum(used) < lasts:
            place += 1
            used.append(min(self.of_step(place), lasts - sum(used)))
        return tuple(used)

    def generations(self, place: int, *, done: int, filled: bool) -> list[tuple[int, ...]]:
        """The generations of a step that is to come, each as the shares of the steps that use it.

        Args:
            place: Place of the step in its epoch.
            done: Passes since the process began.
            filled: Whether the trainer has rollouts.
        """
        passes = self.of_step(place)
        return [
            self.shares(place, left=passes - k, lasts=self.lasts(done + k))
            for k in range(passes)
            if (done + k) % self.every == 0 or not (filled or k)
        ]

    def lasts(self, done: int) -> int:
        """Passes until the trainer generates again.

        Args:
            done: Passes since the process began.
        """
        return self.every - done % self.every
