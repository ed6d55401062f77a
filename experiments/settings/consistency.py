"""Rules between the sections of a preset: what could only fail, or mislead, hours after a stage began."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isocompute.rollout import RolloutError

from .bases import PreparedConfig
from .strict import SettingError, check_budget
from .sweep import PrescribeConfig, SweepConfig
from .trainer import CommandTrainer

if TYPE_CHECKING:
    from .model import Preset


def check(preset: Preset) -> None:
    """Refuse sections that contradict each other."""
    _problems_are_given_once(preset)
    _engine_can_run(preset)
    _command_can_be_measured(preset)
    for name, sweep in preset.sweep.items():
        if preset.difficulty is not None:
            if name not in preset.difficulty.sets:
                known = ", ".join(preset.difficulty.sets)
                raise SettingError(f"sweep.{name}", f"is not a problem set of difficulty.sets ({known})")
            _batches_are_of_the_set(name, sweep, preset.difficulty.sets[name].train)
        if sweep.search is not None and len(preset.base_models) > 1:
            raise SettingError(
                f"sweep.{name}.learning_rate", "is searched; with several base models it must be declared"
            )
        _dropping_sees_right_answers(name, preset)
    for name, test in preset.prescribe.items():
        if name not in preset.sweep:
            raise SettingError(f"prescribe.{name}", f"is not a problem set of the sweep ({', '.join(preset.sweep)})")
        _prescription_is_tested_fairly(name, preset.sweep[name], test)


def _problems_are_given_once(preset: Preset) -> None:
    """Refuse sources of problems beside prepared base models, which have theirs, and their absence otherwise."""
    prepared = isinstance(preset.base, PreparedConfig)
    for name, given in (("problems", bool(preset.problems)), ("difficulty", preset.difficulty is not None)):
        if prepared and given:
            raise SettingError(name, "is given, and prepared base models have their problem sets: leave it empty")
        if not prepared and not given:
            raise SettingError(name, "is empty; only prepared base models have their problem sets already")


def _engine_can_run(preset: Preset) -> None:
    """Refuse settings of an engine that would only fail in a worker."""
    sampling, resources = preset.sampling, preset.resources
    if resources.resolved_sampler() != "vllm":
        return
    try:
        resources.resolved_engine().resolved(
            longest=sampling.max_prompt_tokens + sampling.max_new_tokens, cuda=resources.device == "cuda"
        )
    except RolloutError as error:
        raise SettingError("resources.engine", f"cannot run: {error}") from None


def _command_can_be_measured(preset: Preset) -> None:
    """Refuse settings of our learner, and measures of it, where a command trains."""
    if not isinstance(preset.trainer, CommandTrainer):
        return
    metric = f"avg_at_{preset.evaluation.samples}"
    if preset.evaluation.metric != metric:
        raise SettingError(
            "evaluation.metric",
            f"is {preset.evaluation.metric!r}; the log of a trainer has mean rewards alone: {metric}",
        )
    if preset.resources.keep_policies != "none":
        raise SettingError(
            "resources.keep_policies",
            f"is {preset.resources.keep_policies!r}; what a command trains is in its own checkpoints: none",
        )
    for name, sweep in preset.sweep.items():
        given = {"learner": bool(sweep.learner), "evaluations_per_octave": sweep.evaluations_per_octave is not None,
                 "warmup_rollouts": sweep.warmup_rollouts is not None}  # fmt: skip
        for setting, is_given in given.items():
            if is_given:
                raise SettingError(
                    f"sweep.{name}.{setting}", "is of our learner, and a command trains: leave it empty, and give the "
                    "command its own settings"
                )  # fmt: skip


def _dropping_sees_right_answers(name: str, preset: Preset) -> None:
    """Refuse to drop solved problems where a penalty hides which answers are right."""
    drop_above = preset.sweep[name].learner.get("batch", {}).get("drop_above")
    if drop_above is not None and preset.sampling.length_penalty is not None:
        raise SettingError(
            f"sweep.{name}.learner.batch.drop_above",
            f"is {drop_above}, and sampling.length_penalty gives long right answers less than the full reward, so that "
            "solved problems would not be seen: leave one of the two out",
        )


def _batches_are_of_the_set(name: str, sweep: SweepConfig, most: int) -> None:
    """Refuse a batch of more problems than the set has for training."""
    pairs = [("", size) for _, size in sweep.grid()] + [("learning_rate.", size) for _, size in sweep.searched()]
    for part, size in pairs:
        if size > most:
            raise SettingError(
                f"sweep.{name}.{part}problems_per_batch",
                f"is {size}; it must lie between 1 and the {most} training problems of difficulty.sets.{name}",
            )


def _prescription_is_tested_fairly(name: str, sweep: SweepConfig, test: PrescribeConfig) -> None:
    """Refuse a test whose budget cannot be run or is below the sweep's, or that reuses seeds of sweep or pilot."""
    where = f"prescribe.{name}"
    for n in test.baselines:
        if n not in {size for size, _ in sweep.grid()}:
            raise SettingError(f"{where}.baselines", f"holds {n}, which is no n of the sweep")
    pairs = sweep.grid()
    check_budget(test.rollouts, test.evaluate_every, [n * size for n, size in pairs], where=f"{where}.")
    if test.rollouts < sweep.rollouts:
        raise SettingError(
            f"{where}.rollouts",
            f"is {test.rollouts}; a prescription is tested at the sweep's {sweep.rollouts} or above",
        )
    used = sorted(set(test.seeds) & sweep.selecting_seeds())
    if used:
        raise SettingError(
            f"{where}.seeds", f"holds {used[0]}, which was used to choose the prescription; test with other seeds"
        )
