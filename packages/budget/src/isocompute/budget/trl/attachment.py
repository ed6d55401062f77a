"""The budget of one trainer: it counts what is generated, charges it, and decides whether the next step is taken.

An optimizer step is several passes (forward and backward over a micro-batch). The trainer generates before a pass whose
number, counted from the start of its process, is a multiple of ``steps_per_generation × num_iterations``, and before
the first pass of a process that has no rollouts yet (``GRPOTrainer._prepare_inputs``). So a run that is resumed
generates at once and then at other steps than before. The last optimizer step of an epoch has fewer passes where the
epoch's do not divide evenly (``Trainer._run_epoch``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..checks import whole
from ..contract.files import atomic_write
from ..errors import BudgetError, LedgerError
from ..ledger.counts import Counts, split
from ..ledger.ledger import History, Ledger
from ..ledger.limits import Limits, admission
from ..ledger.meter import Standing

LOGGER = logging.getLogger(__name__)
MARK = "_isocompute_budget"


class Attachment:
    """A budget that was attached to a trainer with ``attach``.

    Rank 0 writes the ledger and decides; the others send it their counts and are told. A batch that several optimizer
    steps use is charged to all of them (``Ledger.charge``). While one is generated for training, a file beside it,
    ``run.ledger.generating``, holds its number of rollouts, so that what a killed process had not charged is charged as
    lost by the next one.

    Attributes:
        path: The ledger's file.
        reason: Why the run was ended; empty before, and where it ended for another reason.
    """

    def __init__(self, trainer: Any, path: Path, *, run_id: str, limits: Limits, devices: int | None) -> None:
        if hasattr(trainer, MARK):
            raise BudgetError(
                f"the trainer has a budget already, with the ledger {getattr(trainer, MARK).path}; attach one budget, "
                "which may have several limits"
            )
        self.limits, self.path, self.run_id, self.reason = limits, path, run_id, ""
        self._note = path.with_name(f"{path.name}.generating")
        self._trainer, self._accelerator = trainer, trainer.accelerator
        self._devices = self._accelerator.num_processes if devices is None else whole(devices, "devices", least=1)
        self._ledger: Ledger | None = None
        self._passes: Passes
        self._position = self._done_before_step = 0
        # Of what this attempt charged, the parts of steps that were not taken yet.
        self._ahead: dict[int, Counts] = {}
        self._clock: float | None = None
        self._counted = False
        self._generate, trainer._generate = trainer._generate, self._counting
        self._log, trainer.log = trainer.log, self._logging
        trainer.add_callback(_callback(self))
        setattr(trainer, MARK, self)

    @property
    def standing(self) -> Standing:
        """Spending so far; only rank 0 has it while the trainer trains.

        Raises:
            BudgetError: It is asked on another rank.
            LedgerError: The ledger cannot be read.
        """
        if not self._accelerator.is_main_process:
            raise BudgetError("rank 0 alone has the ledger; ask there what was spent")
        if self._ledger is None:
            return self._standing_after(None)
        ahead = sum(self._ahead.values(), Counts())
        used = self._ledger.used
        return Standing(
            limits=self.limits,
            used=Counts(
                rollouts=used.rollouts - ahead.rollouts,
                prompt_tokens=used.prompt_tokens - ahead.prompt_tokens,
                response_tokens=used.response_tokens - ahead.response_tokens,
            ),
            ahead=ahead,
            lost=self._ledger.lost,
            device_seconds=self._ledger.device_seconds,
        )

    def begin(self, args: Any, state: Any, dataloader: Any) -> None:
        """Open the ledger at the step that the trainer goes on after, unless the next one does not fit.

        Raises:
            BudgetError: The next step does not fit, in every process.
            LedgerError: The ledger never reached that step, or cannot be written.
        """
        self.close()
        epochs, epoch_steps, _, _, _, epoch_passes, _ = self._trainer.set_initial_training_values(args, dataloader)
        self._passes = Passes(
            accumulation=args.gradient_accumulation_steps,
            every=args.steps_per_generation * self._trainer.num_iterations,
            epoch_passes=epoch_passes,
            epoch_steps=epoch_steps,
        )
        self._position = 0 if args.ignore_data_skip else state.global_step % epoch_steps
        self._ahead, self.reason = {}, ""
        more = state.global_step // epoch_steps < epochs
        refused = self._decided(partial(self._open_if_admitted, state.global_step, more))
        if refused:
            raise BudgetError(f"{self.path}: not even the next step fits, so nothing is trained: {refused}")

    def begin_epoch(self, first: bool) -> None:
        """An epoch begins; all but the first of a process begin with their first step."""
        if not first:
            self._position = 0

    def begin_step(self) -> None:
        """An optimizer step begins."""
        self._done_before_step = self._trainer._step

    def end_step(self, args: Any, state: Any, control: Any) -> None:
        """An optimizer step was taken: end the run if the next one may not be, with all that its last step is due."""
        self._position += 1
        if not self._counted:
            raise BudgetError(
                "a step was taken and nothing was counted, so this trainer does not generate with _generate, as "
                "GRPOTrainer of TRL 1.16 does; its budget cannot be enforced"
            )
        refused = self._decided(partial(self._settle_step, state.global_step))
        if not refused or control.should_training_stop:
            return
        self.reason = refused
        if self._accelerator.is_main_process:
            LOGGER.warning("%s: training ends after step %d: %s", self.path, state.global_step, refused)
        # The trainer reads the stop after these. Strategies by epoch act on the end of the epoch that the stop is.
        control.should_training_stop = control.should_log = True
        if self._trainer.eval_dataset is not None and args.eval_strategy == "steps":
            control.should_evaluate = True
        if args.save_strategy == "steps":
            control.should_save = True

    def end(self, state: Any) -> None:
        """Training ended: what was generated for later steps is lost work."""
        if self._ledger is not None:
            self._ledger.charge(state.global_step, {}, device_seconds=self._seconds())
            self._ledger.end(state.global_step)
        self.close()

    def close(self) -> None:
        """Let another writer in."""
        ledger, self._ledger, self._clock = self._ledger, None, None
        if ledger is not None:
            ledger.close()

    def _open_if_admitted(self, step: int, more: bool) -> str:
        """Open the ledger after a step; if the next one does not fit, leave it untouched and return why."""
        refused = self._refusal(step + 1, self._standing_after(step)) if more else ""
        if not refused:
            self._charge_what_was_lost(self._open(step), step)
        return refused

    def _standing_after(self, step: int | None) -> Standing:
        """Read what was spent, or will have been when an attempt has begun after a step; nothing is written."""
        if not self.path.exists():
            return Standing(limits=self.limits)
        history = History.read(self.path)
        totals = history.totals(resumed_from=step)
        lost = totals.lost_training
        return Standing(
            limits=self.limits,
            used=totals.used,
            lost=lost + self._uncharged(totals.used + lost),
            device_seconds=history.device_seconds,
        )

    def _open(self, resumed_from: Any) -> Ledger:
        self._ledger = ledger = Ledger.open(self.path, run_id=self.run_id, resumed_from=resumed_from)
        ledger.note_limits(self.limits)
        self._clock = self._clock or time.monotonic()
        return ledger

    def _uncharged(self, paid: Counts) -> Counts:
        """The batch that a killed process was generating, or had generated and not charged; its tokens are unknown."""
        try:
            rollouts, before = map(int, self._note.read_text().split())
        except FileNotFoundError:
            return Counts()
        except (OSError, ValueError) as error:
            raise LedgerError(f"{self._note}: is not the number of rollouts that were generated ({error})") from None
        return Counts(rollouts=rollouts) if paid.rollouts == before else Counts()

    def _charge_what_was_lost(self, ledger: Ledger, step: int) -> None:
        lost = self._uncharged(ledger.used + ledger.lost)
        if lost.rollouts:
            LOGGER.warning("%s: %d rollouts that a killed process generated count as lost", self.path, lost.rollouts)
            ledger.charge(step + 1, {"failed": lost})
            ledger.end(step)
        self._note.unlink(missing_ok=True)

    def _settle_step(self, step: int) -> str:
        """Charge the rest of a step, and return why the next one may not be taken; empty if it may."""
        ledger = self._ledger
        if ledger is None:
            raise BudgetError(f"{self.path}: was closed while the trainer trains")
        ledger.charge(step, {}, device_seconds=self._seconds())
        self._ahead = {later: part for later, part in self._ahead.items() if later > step}
        return self._refusal(step + 1, self.standing)

    def _refusal(self, step: int, standing: Standing) -> str:
        """Why the next step may not be taken; empty if it may."""
        trainer = self._trainer
        batch = trainer._train_batch_size * trainer.args.steps_per_generation * self._accelerator.num_processes
        made = self._passes.generations(self._position, done=trainer._step, filled=trainer._buffered_inputs is not None)
        rollouts = batch * len(made)
        used = standing.used + standing.ahead
        if self.limits.counted == "used":
            used = standing.used
            rollouts = sum(split(Counts(rollouts=batch), shares)[0].rollouts for shares in made)
            rollouts += self._ahead.get(step, Counts()).rollouts
        return admission(
            self.limits,
            step,
            rollouts,
            used=used,
            lost=standing.lost,
            reserved=0,
            device_seconds=standing.device_seconds,
        ).reason

    def _counting(self, prompts: Any) -> Any:
        """Generate as the trainer does, and charge it before it is scored: a reward that raises was paid for too."""
        self._clock = self._clock or time.monotonic()
        ledger = self._ledger
        if ledger is not None and self._trainer.model.training:
            rollouts = len(prompts) * self._accelerator.num_processes
            with atomic_write(self._note, error=LedgerError) as stream:
                stream.write(f"{rollouts} {(ledger.used + ledger.lost).rollouts}\n".encode())
        generated = self._generate(prompts)
        prompt_ids, completion_ids, tool_mask = generated[:3]
        responses = sum(map(len, completion_ids))
        # What tools and environments wrote into a completion was prefilled and not sampled.
        prefilled = 0 if tool_mask is None else sum(len(mask) - int(sum(mask)) for mask in tool_mask)
        counts = [len(completion_ids), sum(map(len, prompt_ids)) + prefilled, responses - prefilled]
        if self._accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            counts = [sum(column) for column in zip(*gather_object([counts]), strict=True)]
        self._counted = True
        if self._accelerator.is_main_process:
            rollouts, prompt_tokens, response_tokens = counts
            self._charge(
                Counts(rollouts=rollouts, prompt_tokens=prompt_tokens, response_tokens=response_tokens),
                training=self._trainer.model.training,
            )
            self._note.unlink(missing_ok=True)
        return generated

    def _charge(self, counts: Counts, *, training: bool) -> None:
        """Charge a batch to the step in progress, or an evaluation's to the step it follows."""
        trainer = self._trainer
        # An evaluation outside train() goes on with the ledger as it is.
        ledger = self._ledger or self._open("last")
        step = trainer.state.global_step
        if not training:
            ledger.charge(step, {"eval": counts}, device_seconds=self._seconds())
            return
        left = trainer.current_gradient_accumulation_steps - (trainer._step - self._done_before_step)
        shares = self._passes.shares(self._position, left=left, lasts=self._passes.lasts(trainer._step))
        ledger.charge(step + 1, {"trained": counts}, shares=shares, device_seconds=self._seconds())
        for k, part in enumerate(split(counts, shares)):
            self._ahead[step + 1 + k] = self._ahead.get(step + 1 + k, Counts()) + part

    def _seconds(self) -> float:
        """Device-seconds since they were last taken."""
        before, self._clock = self._clock, time.monotonic()
        return 0.0 if before is None else (self._clock - before) * self._devices

    def _logging(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log as the trainer does, and what was spent beside what training logs."""
        if self._ledger is not None and self._trainer.model.training:
            logs.update(self.standing.metrics())
        self._log(logs, *args, **options)

    def _decided(self, decide: Callable[[], str]) -> str:
        """Let rank 0 decide for every process; what it raises is raised in all of them."""
        said: list[Any] = ["", None]
        if self._accelerator.is_main_process:
            try:
                said[0] = decide()
            except BudgetError as error:
                said[1] = error
        if self._accelerator.num_processes > 1:
            from accelerate.utils import broadcast_object_list

            broadcast_object_list(said)
        if said[1] is not None:
            raise said[1]
        return str(said[0])


def _callback(budget: Attachment) -> Any:
    """Make the callback that the trainer calls."""
    from transformers import TrainerCallback

    class BudgetCallback(TrainerCallback):  # type: ignore[misc]
        """Hands the trainer's events to its budget."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self.epochs = 0
            budget.begin(args, state, given["train_dataloader"])

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            budget.begin_epoch(first=not self.epochs)
            self.epochs += 1

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            budget.begin_step()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            budget.end_step(args, state, control)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            budget.end(state)

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not budget._trainer.is_in_train:
                budget.close()

        on_predict = on_evaluate

    return BudgetCallback()


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The passes of a run: when a ``GRPOTrainer`` generates, and which optimizer steps use it.

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

    def of_step(self, position: int) -> int:
        """Passes of the optimizer step at a position in its epoch, from 0."""
        last = position % self.epoch_steps == self.epoch_steps - 1
        return self.epoch_passes % self.accumulation or self.accumulation if last else self.accumulation

    def shares(self, position: int, *, left: int, lasts: int) -> tuple[int, ...]:
        """Count the passes of its step, and of those after it, that use a generation.

        Args:
            position: Position of the step in its epoch.
            left: Passes of the step that are still to come.
            lasts: Passes that use the generation.
        """
        used = [min(left, lasts)]
        while sum(used) < lasts:
            position += 1
            used.append(min(self.of_step(position), lasts - sum(used)))
        return tuple(used)

    def generations(self, position: int, *, done: int, filled: bool) -> list[tuple[int, ...]]:
        """The generations of a step that is to come, each as the shares of the steps that use it.

        Args:
            position: Position of the step in its epoch.
            done: Passes since the process began.
            filled: Whether the trainer has rollouts.
        """
        passes = self.of_step(position)
        return [
            self.shares(position, left=passes - k, lasts=self.lasts(done + k))
            for k in range(passes)
            if (done + k) % self.every == 0 or not (filled or k)
        ]

    def lasts(self, done: int) -> int:
        """Passes until the trainer generates again.

        Args:
            done: Passes since the process began.
        """
        return self.every - done % self.every
