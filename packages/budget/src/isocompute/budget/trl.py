"""Stop a run of TRL's ``GRPOTrainer`` at its budget, and keep its ledger.

TRL is imported when ``attach`` is called. Read in TRL 1.16 with transformers 5.19: an optimizer step consists of
several passes (forward and backward over a micro-batch). The trainer generates before each pass whose number, counted
from the start of its process, is a multiple of ``steps_per_generation × num_iterations``. It also generates before the
first pass of a process that has no rollouts yet (``GRPOTrainer._prepare_inputs``). So a resumed run generates at once,
and then at other steps than before. The last optimizer step of an epoch has fewer passes if the epoch's passes do not
divide evenly (``Trainer._run_epoch``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .errors import BudgetError, shorten
from .ledger.counts import Counts, split
from .ledger.limits import Counted, Limits, Standing
from .ledger.meter import Hook

__all__ = ["Attachment", "attach"]

LOGGER = logging.getLogger(__name__)
MARK = "_isocompute_budget"


def attach(
    trainer: Any,
    path: str | Path,
    *,
    rollouts: float | None = None,
    response_tokens: float | None = None,
    device_hours: float | None = None,
    money: float | None = None,
    price_per_device_hour: float | None = None,
    counted: Counted = "paid",
    run_id: str | None = None,
    devices: int | None = None,
) -> Attachment:
    """End a trainer's run before it exceeds its budget, and charge what it generates to a ledger.

    Call it before ``trainer.train()``, in every process. The step that would exceed a limit is not taken. The step
    before it is logged, evaluated and saved, if the trainer's strategies include evaluations and checkpoints.
    ``train(resume_from_checkpoint=...)`` continues the ledger at the checkpoint's step. If not even the first step
    fits, ``train`` raises ``BudgetError``, and the ledger is unchanged.

    Args:
        trainer: A ``GRPOTrainer``, or a subclass that generates in the same way.
        path: The ledger's file, which rank 0 writes.
        rollouts: Most rollouts generated for training.
        response_tokens: The step that reaches it is the last that generates.
        device_hours: The step that reaches it is the last: hours since ``train`` began, times devices.
        money: The step that reaches it is the last; needs the price.
        price_per_device_hour: Price of a device-hour, in the same currency.
        counted: What the limits on rollouts and response tokens count, see ``Limits``. With ``"used"``, a batch that
            several steps use counts step by step, so a run ends after the same step however often it was killed.
        run_id: The run; by default that of the ledger, or folder/name of a new one's path.
        devices: Devices held; by default one per process. Count those of a vLLM server too.

    Returns:
        What was spent, and why the run was ended.

    Raises:
        BudgetError: TRL is not installed; this is another trainer, or one that is already training or has a budget; or
            there is no limit, or an invalid one.
        LedgerError: The file is not a ledger, or belongs to another run.
    """
    try:
        from trl import GRPOTrainer
    except ImportError as error:
        raise BudgetError(f"TRL cannot be imported ({error}); install it with 'pip install trl'") from None
    if not isinstance(trainer, GRPOTrainer):
        raise BudgetError(f"a budget is attached to TRL's GRPOTrainer, not to {shorten(trainer)}")
    if trainer.is_in_train:
        raise BudgetError("the trainer trains already; attach the budget before trainer.train()")
    limits = Limits.given(
        rollouts=rollouts,
        response_tokens=response_tokens,
        device_hours=device_hours,
        money=money,
        price_per_device_hour=price_per_device_hour,
        counted=counted,
    )
    return Attachment(trainer, Path(path), run_id=run_id, limits=limits, devices=devices)


class Attachment(Hook):
    """A budget that was attached to a trainer with ``attach``.

    Rank 0 writes the ledger and decides; the other ranks send it their counts and receive its decisions. A batch that
    several optimizer steps use is charged to all of them (``Ledger.charge``).
    """

    closed = "was closed while the trainer trains"

    def __init__(self, trainer: Any, path: Path, *, run_id: str | None, limits: Limits, devices: int | None) -> None:
        if hasattr(trainer, MARK):
            path = getattr(trainer, MARK).path
            raise BudgetError(f"the trainer has a budget already, with the ledger {path}; one may have several limits")
        self._trainer, self._accelerator = trainer, trainer.accelerator
        devices = self._accelerator.num_processes if devices is None else devices
        super().__init__(path, limits, run_id=run_id, devices=devices)
        self._passes: Passes
        self._position = self._done_before_step = 0
        # This attempt's charges for steps that were not taken yet.
        self._ahead: dict[int, Counts] = {}
        self._counted = self._begun = False
        self._generate, trainer._generate = trainer._generate, self._counting
        self._log, trainer.log = trainer.log, self._logging
        from transformers import TrainerCallback

        callback = TrainerCallback()
        callback.on_train_begin, callback.on_train_end = self.begin, self.end
        callback.on_epoch_begin = self.begin_epoch
        callback.on_step_begin, callback.on_step_end = self.begin_step, self.end_step
        callback.on_evaluate = callback.on_predict = self.evaluated
        trainer.add_callback(callback)
        setattr(trainer, MARK, self)

    @property
    def standing(self) -> Standing:
        """Spending so far; during training only rank 0 has it."""
        if not self._accelerator.is_main_process:
            raise BudgetError("rank 0 alone has the ledger; ask there what was spent")
        ahead = sum(self._ahead.values(), Counts()) if self._ledger is not None else Counts()
        charged = super().standing
        return replace(charged, used=charged.used - ahead, ahead=ahead)

    def begin(self, args: Any, state: Any, control: Any, *, train_dataloader: Any, **_: Any) -> None:
        """Open the ledger at the step that the trainer resumes after, unless the next step does not fit."""
        self.close()
        initial = self._trainer.set_initial_training_values(args, train_dataloader)
        epochs, epoch_steps, *_, epoch_passes, _ = initial
        self._passes = Passes(
            accumulation=args.gradient_accumulation_steps,
            every=args.steps_per_generation * self._trainer.num_iterations,
            epoch_passes=epoch_passes,
            epoch_steps=epoch_steps,
        )
        self._position = 0 if args.ignore_data_skip else state.global_step % epoch_steps
        self._ahead, self.reason, self._begun = {}, "", False
        more = state.global_step // epoch_steps < epochs
        refused = self._decided(partial(self._open_if_admitted, state.global_step, more))
        if refused:
            raise BudgetError(f"{self.path}: not even the next step fits, so nothing is trained: {refused}")

    def begin_epoch(self, *_: Any, **__: Any) -> None:
        """An epoch begins at its first step, except that a process's first epoch may resume in the middle."""
        self._position, self._begun = 0 if self._begun else self._position, True

    def begin_step(self, *_: Any, **__: Any) -> None:
        """An optimizer step begins."""
        self._done_before_step = self._trainer._step

    def end_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An optimizer step was taken: end the run if the next one may not be, after everything due at a last step."""
        self._position += 1
        if not self._counted:
            raise BudgetError(
                "a step was taken and nothing counted: this trainer does not generate with _generate, as TRL's does"
            )
        refused = self._decided(partial(self._settle_step, state.global_step))
        if not refused or control.should_training_stop:
            return
        self.reason = refused
        if self._accelerator.is_main_process:
            LOGGER.warning("%s: training ends after step %d: %s", self.path, state.global_step, refused)
        # The trainer reads the stop flag after these. Strategies by epoch act on the end of the epoch that the stop
        # causes.
        control.should_training_stop = control.should_log = True
        if self._trainer.eval_dataset is not None and args.eval_strategy == "steps":
            control.should_evaluate = True
        if args.save_strategy == "steps":
            control.should_save = True

    def evaluated(self, *_: Any, **__: Any) -> None:
        """An evaluation outside training uses the ledger alone."""
        if not self._trainer.is_in_train:
            self.close()

    def end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Training ended: what was generated for later steps is lost work."""
        if self._ledger is not None:
            self.charge(state.global_step, {})
            self._ledger.end(state.global_step)
        self.close()

    def _open_if_admitted(self, step: int, more: bool) -> str:
        """Open the ledger after a step; if the next one does not fit, leave it untouched and return why."""
        refused = self._refusal(step + 1, self.standing_after(step)) if more else ""
        if not refused:
            self.open(step)
            self.ledger.charge_lost(step)
        return refused

    def _settle_step(self, step: int) -> str:
        """Charge the rest of a step; return why the next one may not be taken, empty if it may."""
        self.charge(step, {})
        self._ahead = {later: part for later, part in self._ahead.items() if later > step}
        return self._refusal(step + 1, self.standing)

    def _refusal(self, step: int, standing: Standing) -> str:
        """Why the next step may not be taken; empty if it may."""
        trainer = self._trainer
        batch = trainer._train_batch_size * trainer.args.steps_per_generation * self._accelerator.num_processes
        made = self._passes.generations(self._position, done=trainer._step, filled=trainer._buffered_inputs is not None)
        rollouts = batch * len(made)
        if self.limits.counted == "used":
            standing = replace(standing, ahead=Counts())
            rollouts = sum(split(Counts(rollouts=batch), shares)[0].rollouts for shares in made)
            rollouts += self._ahead.get(step, Counts()).rollouts
        return standing.admission(step, rollouts).reason

    def _counting(self, prompts: Any) -> Any:
        """Generate like the trainer, and charge before scoring: a reward function that raises was paid for too."""
        if self._clock is None:
            self.start_clock()
        if self._ledger is not None and self._trainer.model.training:
            self.ledger.reserve(len(prompts) * self._accelerator.num_processes)
        generated = self._generate(prompts)
        prompt_ids, completion_ids, tool_mask = generated[:3]
        responses = sum(map(len, completion_ids))
        # What tools and environments wrote into a completion was prefilled, not sampled.
        prefilled = 0 if tool_mask is None else sum(len(mask) - int(sum(mask)) for mask in tool_mask)
        counts = [len(completion_ids), sum(map(len, prompt_ids)) + prefilled, responses - prefilled]
        if self._accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            counts = [sum(column) for column in zip(*gather_object([counts]), strict=True)]
        self._counted = True
        if self._accelerator.is_main_process:
            rollouts, prompt_tokens, response_tokens = counts
            self._charge(Counts(rollouts=rollouts, prompt_tokens=prompt_tokens, response_tokens=response_tokens))
        return generated

    def _charge(self, counts: Counts) -> None:
        """Charge a batch to the step in progress, or an evaluation's batch to the step it follows."""
        trainer = self._trainer
        if self._ledger is None:
            # An evaluation outside train() continues the ledger as it is.
            self.open("last")
        step = trainer.state.global_step
        if not trainer.model.training:
            self.charge(step, {"eval": counts})
            return
        left = trainer.current_gradient_accumulation_steps - (trainer._step - self._done_before_step)
        shares = self._passes.shares(self._position, left=left, lasts=self._passes.lasts(trainer._step))
        self.charge(step + 1, {"trained": counts}, shares=shares)
        for k, part in enumerate(split(counts, shares)):
            self._ahead[step + 1 + k] = self._ahead.get(step + 1 + k, Counts()) + part

    def _logging(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log like the trainer, and add what was spent to training logs."""
        if self._ledger is not None and self._trainer.model.training:
            logs.update(self.standing.metrics())
        self._log(logs, *args, **options)

    def _decided(self, decide: Callable[[], str]) -> str:
        """Let rank 0 decide for every process; an error that it raises is raised in all of them."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The passes of a run: when a ``GRPOTrainer`` generates, and which optimizer steps use the rollouts.

    Attributes:
        accumulation: Passes per optimizer step.
        every: Passes between generations.
    """

    accumulation: int
    every: int
    epoch_passes: int
    epoch_steps: int

    def of_step(self, position: int) -> int:
        """Passes of the optimizer step at a position in its epoch, counted from 0."""
        last = position % self.epoch_steps == self.epoch_steps - 1
        return self.epoch_passes % self.accumulation or self.accumulation if last else self.accumulation

    def shares(self, position: int, *, left: int, lasts: int) -> tuple[int, ...]:
        """Count the passes of a step and of the following steps that use a generation.

        Args:
            left: Remaining passes of the step.
            lasts: Passes that use the generation.
        """
        used = [min(left, lasts)]
        while sum(used) < lasts:
            position += 1
            used.append(min(self.of_step(position), lasts - sum(used)))
        return tuple(used)

    def generations(self, position: int, *, done: int, filled: bool) -> list[tuple[int, ...]]:
        """The generations of an upcoming step, each as the shares of the steps that use it.

        Args:
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
        """Passes until the trainer generates again."""
        return self.every - done % self.every
