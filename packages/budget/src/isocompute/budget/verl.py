"""Stop a run of veRL at its budget and keep its ledger, by configuration alone.

veRL's TaskRunner, one Ray actor, holds the trainer, its replay buffer and its agent loop manager. The classes that its
configuration names live there, and only that process writes the ledger. The agent loops and engines are other processes
and do not know about the budget. veRL is imported when these classes are instantiated. Read in veRL 0.9.1, with
``trainer.use_v1``.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from .errors import BudgetError, shorten, whole
from .ledger.counts import Counts
from .ledger.limits import LIMITS, Limits, Standing
from .ledger.meter import Hook

__all__ = ["AgentLoopManager", "ReplayBuffer"]

LOGGER = logging.getLogger(__name__)
Tag = TypeVar("Tag")

KEYS = "trainer.v1.sampler.sampler_kwargs"
MANAGER = "actor_rollout_ref.rollout.agent.agent_loop_manager_class=isocompute.budget.verl.AgentLoopManager"
SAMPLER = (
    "trainer.v1.sampler.custom_sampler.path=pkg://isocompute.budget.verl "
    "trainer.v1.sampler.custom_sampler.name=ReplayBuffer"
)
OTHERS = ("ledger", "run_id", "devices")
SINGLE_TURN = "single_turn_agent"
"""veRL's one agent loop in which the model sampled the whole response."""
_BUDGETS: WeakSet[Budget] = WeakSet()


class ReplayBuffer:
    """veRL's own replay buffer, which also charges what is sampled from it and evicted.

    Named in ``trainer.v1.sampler.custom_sampler``; ``sampler_kwargs`` there is the budget (``read_settings``).
    """

    def __new__(cls, **options: Any) -> Any:
        """Make it, with the options that veRL passes to a custom sampler."""
        trainer: Any = getattr(options.get("refill_fn"), "__self__", None)
        if not hasattr(trainer, "_build_replay_buffer"):
            refill = options.get("refill_fn")
            raise BudgetError(
                f"refill_fn is {refill!r}, and no method of the trainer of veRL 0.9 (trainer.use_v1=True)"
            )
        budget = Budget(trainer, **read_settings(trainer.config))
        # veRL passes its filter settings only to its own buffer, not to a custom sampler.
        custom = trainer.config.trainer.v1.sampler.custom_sampler
        path, custom.path = custom.path, None
        try:
            buffer = trainer._build_replay_buffer()
        finally:
            custom.path = path
        buffer.__class__ = type(f"Charging{type(buffer).__name__}", (_Charging, type(buffer)), {})
        buffer.budget, buffer.refill_fn = budget, budget.refill
        _BUDGETS.add(budget)
        return buffer


class AgentLoopManager:
    """veRL's agent loop manager, which also reserves what it dispatches: training, warm-up, refills, re-issued prompts.

    Named in ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``.
    """

    def __init__(self, manager: Any, budget: Budget) -> None:
        self._manager, self._budget = manager, budget

    @classmethod
    def create(cls, *args: Any, config: Any, **options: Any) -> AgentLoopManager:
        """Make veRL's manager, and open the ledger after the loaded checkpoint's step."""
        budget = next((budget for budget in _BUDGETS if budget.trainer.config is config), None)
        if budget is None:
            raise BudgetError(
                f"the trainer's replay buffer is not that of a budget; with trainer.use_v1=True, set {SAMPLER}"
            )
        budget.begin()
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        return cls(AgentLoopManagerTQ.create(*args, config=config, **options), budget)

    def generate_sequences(self, prompts: Any) -> None:
        """Reserve and dispatch a batch."""
        self._budget.dispatch(prompts)
        self._manager.generate_sequences(prompts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class _Charging:
    """A budget's addition to veRL's replay buffer: groups are charged before they leave it."""

    budget: Budget
    partitions: Any

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: Any) -> Any:
        stale, filtered, failed, _ = eviction_reasons
        cohorts = {"stale": stale, "filtered": filtered - stale, "failed": failed - filtered - stale}
        self.budget.charge_groups(partition_id, cohorts, self.partitions[partition_id])
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)  # type: ignore[misc]

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        # Evicted groups are already charged; the others exceed what the step trains on.
        self.budget.charge_groups(partition_id, {"filtered": uids}, self.partitions[partition_id])
        super()._clear_groups(partition_id, uids)  # type: ignore[misc]

    def _materialize_batch(self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: Any) -> Any:
        cohort = "eval" if partition_id == "val" else "trained"
        self.budget.charge_groups(partition_id, {cohort: selected_prompt_uids}, partition_snapshot)
        return super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)  # type: ignore[misc]

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        batch, metrics = super().sample(  # type: ignore[misc]
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        if partition_id == "train":
            metrics.update(self.budget.settle(self.partitions[partition_id]))
        return batch, metrics


class Budget(Hook):
    """The budget of a trainer, in the trainer's process.

    A group is reserved when it is dispatched. When it leaves the replay buffer, it is charged to the step in progress.
    """

    closed = f"is not open, because veRL's agent loop manager is not that of the budget; set +{MANAGER}"

    def __init__(self, trainer: Any, path: Path, limits: Limits, run_id: str | None, devices: int | None) -> None:
        super().__init__(path, limits, run_id=run_id, devices=devices or 1)
        # None means the devices of veRL's throughput metric, which are known only later.
        self.trainer, self._devices = trainer, devices
        self._groups = {"train": Groups(), "val": Groups()}
        self._refilling = self._tools = False
        # The step and rollouts of the current refills; below, the most rollouts that a step refilled.
        self._refilled = (0, 0)
        self._most_refilled = 0

    @property
    def standing(self) -> Standing:
        """Spending so far; dispatched rollouts are ahead."""
        return replace(super().standing, ahead=Counts(rollouts=self._groups["train"].rollouts))

    def begin(self) -> None:
        """Open the ledger after the step that the trainer resumes after."""
        trainer = self.trainer
        step, only = trainer.global_steps, trainer.config.trainer.get("val_only", False)
        self.open("last" if only else step)
        self.devices = self._devices or trainer._get_n_gpus_for_throughput()
        if not only:
            restored = self._restore(trainer.replay_buffer)
            self.ledger.charge_lost(step, restored=self._groups["train"].rollouts)
            more = step < self._last_step
            refused = self._refusal(step + 1, self._batch, before=self._ahead(restored)) if more else ""
            if refused:
                self.close()
                raise BudgetError(f"{self.path}: not even the next step fits, so nothing is trained: {refused}")

    def dispatch(self, prompts: Any) -> None:
        """Reserve a batch before it is generated.

        Raises:
            BudgetError: It does not fit. veRL would wait for a refill forever.
        """
        rollout = self.trainer.config.actor_rollout_ref.rollout
        names = prompts["agent_name"] if "agent_name" in prompts.keys() else [rollout.agent.default_agent_loop]  # noqa: SIM118
        self._tools |= any(str(name) != SINGLE_TURN for name in ([names] if isinstance(names, str) else names))
        if "validate" in prompts.keys() and prompts["validate"]:  # noqa: SIM118
            self._groups["val"].update(dispatched(prompts, rollout.val_kwargs.n))
            return
        groups = dispatched(prompts, rollout.n)
        rollouts = sum(groups.values())
        self._admit(rollouts)
        self.ledger.reserve(self._groups["train"].rollouts + rollouts)
        self._groups["train"].update(groups)
        if self._refilling:
            step, so_far = self._refilled
            so_far = rollouts + (so_far if step == self.trainer.global_steps else 0)
            self._refilled = (self.trainer.global_steps, so_far)
            self._most_refilled = max(self._most_refilled, so_far)

    def refill(self, prompts: int) -> Any:
        """Dispatch new prompts to replace evicted groups."""
        self._refilling = True
        try:
            return self.trainer._add_prompts_to_generate(prompts)
        finally:
            self._refilling = False

    def charge_groups(
        self, partition: str, cohorts: Mapping[str, Iterable[str]], tags: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Charge groups that leave the replay buffer to the step in progress, or an evaluation's to the step before.

        Args:
            cohorts: Groups by what becomes of them; groups already charged are skipped.
            tags: veRL's tags by trajectory.
        """
        # Raises if the manager is veRL's own, which registers no groups.
        _ = self.ledger
        groups, counts = self._groups[partition], dict[str, Counts]()
        for cohort, uids in cohorts.items():
            leaving = {uid for uid in uids if uid in groups}
            if leaving:
                made, failed = groups.take(leaving, tags, self._written(partition, leaving, tags))
                counts[cohort] = counts.get(cohort, Counts()) + made
                lost = "eval" if partition == "val" else "failed"
                counts[lost] = counts.get(lost, Counts()) + Counts(rollouts=failed)
        if counts:
            self.charge(self.trainer.global_steps, counts)

    def settle(self, tags: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """All responses of a step were sampled: decide which step is the last, and return the metrics to log."""
        trainer = self.trainer
        step = trainer.global_steps
        self.charge(step, {})
        if trainer.local_trigger_step + 1 < trainer.parameter_sync_step:
            return {}
        for more in (1, 2):
            before = self._batch * (more - 1)
            refused = self._refusal(step + more, self._batch + self._most_refilled, before=before)
            if refused:
                self._end_after(step + more - 1, refused)
                break
        metrics = self.standing.metrics()
        if step >= self._last_step:
            self._lose_what_is_left(step, tags)
        return metrics

    def _end_after(self, step: int, reason: str) -> None:
        """Make a step the last, with the checkpoint and evaluation that veRL gives its last step."""
        trainer = self.trainer
        if step >= self._last_step:
            return
        self.reason, trainer.total_training_steps = reason, step
        LOGGER.warning("%s: training ends after step %d: %s", self.path, step, reason)
        if step == trainer.global_steps:
            # veRL decided before this step that it is not the last, so its checkpoint and evaluation are not due. If
            # these are enabled, they are due at multiples of their frequency.
            of_trainer = trainer.config.trainer
            for name in ("save_freq", "test_freq"):
                if of_trainer[name] > 0:
                    of_trainer[name] = step

    def _lose_what_is_left(self, step: int, tags: Mapping[str, Mapping[str, Any]]) -> None:
        """Charge what was dispatched for later steps as lost. The tokens of unfinished rollouts are unknown."""
        groups = self._groups["train"]
        # veRL lists a trajectory before it writes its lengths.
        tags = {key: tag for key, tag in tags.items() if "prompt_len" in tag}
        made, unfinished = groups.take(list(groups), tags, self._written("train", set(groups), tags))
        if made or unfinished:
            self.ledger.charge(step + 1, {"trained": made + Counts(rollouts=unfinished)})
            self.ledger.end(step)

    def _restore(self, buffer: Any) -> int:
        """Take over the finished groups that a checkpoint restored; return the number of restored groups."""
        buffer._sync_metadata_from_transfer_queue()
        for uid in buffer.finished_keys["train"] | buffer.failure_keys["train"]:
            self._groups["train"][uid] = len(set(map(session_of, of_prompts({uid}, buffer.partitions["train"]))))
        return len(buffer.prompt_global_steps["train"])

    def _admit(self, rollouts: int) -> None:
        """Refuse rollouts that do not fit; tokens and time are checked when the last step is decided."""
        step, standing = self.trainer.global_steps, self.standing
        limits = replace(self.limits, response_tokens=None, device_seconds=None, money=None)
        refused = replace(standing, limits=limits).admission(step, rollouts).reason
        if not refused:
            return
        why = "in place of evicted groups, and would wait for them for ever" if self._refilling else "to begin"
        raise BudgetError(
            f"{self.path}: step {step} needs {rollouts:,} more rollouts {why}: {refused}; go on from the "
            f"last checkpoint with {KEYS}.rollouts of at least {standing.held.rollouts + rollouts:,}"
        )

    def _refusal(self, step: int, rollouts: int, *, before: int = 0) -> str:
        """Why a step may not dispatch this many rollouts after ``before`` upcoming ones; empty if it may."""
        standing = self.standing
        ahead = standing.ahead + Counts(rollouts=before)
        return replace(standing, ahead=ahead).admission(step, rollouts).reason

    def _ahead(self, restored: int) -> int:
        """Rollouts dispatched before the first step: the warm-up, and what a checkpoint had in flight."""
        config = self.trainer.config
        batches = config.trainer.v1.get(self.trainer.trainer_mode, {}).get("num_warmup_batches", 0)
        prompts = max(int(batches * config.data.train_batch_size), restored)
        return max(0, prompts * int(config.actor_rollout_ref.rollout.n) - self._groups["train"].rollouts)

    @property
    def _batch(self) -> int:
        """Rollouts that a step dispatches, excluding refills."""
        config = self.trainer.config
        return int(config.data.train_batch_size * config.actor_rollout_ref.rollout.n)

    @property
    def _last_step(self) -> int:
        trainer = self.trainer
        return int(min(trainer.total_training_steps, trainer.steps_per_epoch * trainer.config.trainer.total_epochs))

    def _written(self, partition: str, uids: set[str], tags: Mapping[str, Any]) -> dict[str, int]:
        """Tokens that tools wrote into the response, by trajectory; empty without tools."""
        keys = list(of_prompts(uids, tags)) if self._tools else []
        if not keys:
            return {}
        import transfer_queue

        data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition, select_fields=["response_mask"])
        return {key: mask.numel() - int(mask.sum()) for key, mask in zip(keys, data["response_mask"], strict=True)}


def read_settings(config: Any) -> dict[str, Any]:
    """The ledger, limits, run and devices in ``trainer.v1.sampler.sampler_kwargs``, as ``Budget`` takes them.

    A relative path starts from the folder in which the trainer's process runs.
    """
    try:
        installed = version("verl")
    except PackageNotFoundError:
        raise BudgetError("veRL is not installed; install it with 'pip install \"verl==0.9.*\"'") from None
    if not installed.startswith("0.9."):
        raise BudgetError(f'veRL {installed} is installed, and this budget is for 0.9; install "verl==0.9.*"')
    if config.skip.rollout_tq.enable:
        raise BudgetError("skip.rollout_tq.enable=True trains on rollouts of an earlier run: there is nothing to count")
    given: Mapping[str, Any] = dict(config.trainer.v1.sampler.sampler_kwargs or {})
    known = (*OTHERS, *LIMITS)
    wrong = [shorten(name) for name in given if name not in known]
    problems = [f"{', '.join(wrong)} is unknown; the budget's keys are {', '.join(known)}"] if wrong else []
    ledger, devices, limits = given.get("ledger"), given.get("devices"), Limits()
    if not isinstance(ledger, str) or not ledger:
        problems.append(f"ledger is {shorten(ledger)}; give the ledger's file, as in +{KEYS}.ledger=/path/run.ledger")
    try:
        limits = Limits.given(**{name: given[name] for name in LIMITS if name in given})
    except BudgetError as error:
        problems.append(str(error))
    try:
        devices = None if devices is None else whole(devices, "devices", least=1)
    except BudgetError as error:
        problems.append(str(error))
    if problems:
        # Report all problems at once, since veRL has loaded its models by then.
        raise BudgetError(f"{KEYS}: {'; '.join(problems)}")
    return {"path": Path(str(ledger)), "limits": limits, "run_id": given.get("run_id"), "devices": devices}


class Groups(dict[str, int]):
    """The rollouts dispatched for each prompt (a group) that is not charged yet."""

    @property
    def rollouts(self) -> int:
        """The sum over all prompts."""
        return sum(self.values())

    def take(
        self, uids: Iterable[str], tags: Mapping[str, Mapping[str, Any]], written: Mapping[str, int]
    ) -> tuple[Counts, int]:
        """Remove prompts, and count what was generated for them.

        Args:
            written: By trajectory, the response tokens that were not sampled.

        Returns:
            The rollouts and tokens of the sessions that have a trajectory, and the number of rollouts without one.
        """
        taken = {uid: self.pop(uid) for uid in set(uids) if uid in self}
        sessions, prompt, response = set(), 0, 0
        for key, tag in of_prompts(taken, tags).items():
            sessions.add(session_of(key))
            prompt += tag["prompt_len"] + written.get(key, 0)
            response += tag["response_len"] - written.get(key, 0)
        made = Counts(rollouts=len(sessions), prompt_tokens=prompt, response_tokens=response)
        return made, max(0, sum(taken.values()) - len(sessions))


def session_of(key: str) -> str:
    """The session of a trajectory, including its prompt."""
    return key.rsplit("_", 1)[0]


def of_prompts(uids: Container[str], tags: Mapping[str, Tag]) -> dict[str, Tag]:
    """The trajectories of some prompts."""
    return {key: tag for key, tag in tags.items() if key.split("_")[0] in uids}


def dispatched(prompts: Any, default: int) -> dict[str, int]:
    """The prompts of a batch, with the rollouts that veRL's workers generate for each."""
    uids = [str(uid) for uid in prompts["uid"]]
    each = list(prompts["__rollout_n__"]) if "__rollout_n__" in prompts.keys() else [default] * len(uids)  # noqa: SIM118
    return {uid: int(n) for uid, n in zip(uids, each, strict=True)}
