"""Stop a run of veRL at its budget and keep its ledger, by configuration alone.

veRL's TaskRunner, one Ray actor, holds the trainer, its replay buffer and its agent loop manager: what it names in its
configuration lives there, and that process alone writes the ledger. The agent loops and engines, which are other
processes, know nothing of it. veRL is imported when these classes are made; read was 0.9.1, with ``trainer.use_v1``.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from ..errors import BudgetError
from .budget import SAMPLER, Budget, BudgetSettings

__all__ = ["AgentLoopManager", "ReplayBuffer"]

_BUDGETS: WeakSet[Budget] = WeakSet()


class ReplayBuffer:
    """The replay buffer that veRL would make without it, which also charges what is sampled from it and evicted.

    Named in ``trainer.v1.sampler.custom_sampler``; ``sampler_kwargs`` there is the budget (``BudgetSettings``).

    Raises:
        BudgetError: The budget makes no sense, or it is not veRL's trainer that makes the buffer.
        LedgerError: The file is not a ledger.
    """

    def __new__(cls, **options: Any) -> Any:
        """Make it, with what veRL hands to a custom sampler."""
        trainer: Any = getattr(options.get("refill_fn"), "__self__", None)
        if not hasattr(trainer, "_build_replay_buffer"):
            raise BudgetError(
                "this replay buffer is made by the trainer of veRL 0.9 (trainer.use_v1=True), whose method its "
                f"refill_fn is, and refill_fn is {options.get('refill_fn')!r}"
            )
        budget = Budget(trainer, BudgetSettings.read(trainer.config))
        # To a custom sampler veRL passes none of its settings of filters; its own buffer gets them all.
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
    """veRL's agent loop manager, which also reserves what it dispatches: training, warm-up, refills, re-issue.

    Named in ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``.
    """

    def __init__(self, manager: Any, budget: Budget) -> None:
        self._manager, self._budget = manager, budget

    @classmethod
    def create(cls, *args: Any, config: Any, **options: Any) -> AgentLoopManager:
        """Make veRL's manager, and open the ledger after the step of the checkpoint that was loaded.

        Raises:
            BudgetError: The trainer has no budget, or not even the next step fits.
            LedgerError: The ledger never reached that step, or cannot be written.
        """
        budget = next((budget for budget in _BUDGETS if budget.trainer.config is config), None)
        if budget is None:
            raise BudgetError(
                "the trainer's replay buffer is not that of a budget, so nothing would be charged; with "
                f"trainer.use_v1=True, set {SAMPLER}"
            )
        budget.open()
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        return cls(AgentLoopManagerTQ.create(*args, config=config, **options), budget)

    def generate_sequences(self, prompts: Any) -> None:
        """Reserve a batch, and dispatch it.

        Raises:
            BudgetError: It does not fit.
        """
        self._budget.dispatch(prompts)
        self._manager.generate_sequences(prompts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class _Charging:
    """The part of a replay buffer that a budget adds to veRL's: groups are charged before they leave it."""

    budget: Budget
    partitions: Any

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: Any) -> Any:
        stale, filtered, failed, _ = eviction_reasons
        cohorts = {"stale": stale, "filtered": filtered - stale, "failed": failed - filtered - stale}
        self.budget.charge(partition_id, cohorts, self.partitions[partition_id])
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)  # type: ignore[misc]

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        # Those that were evicted are charged: the others are more than the step trains on.
        self.budget.charge(partition_id, {"filtered": uids}, self.partitions[partition_id])
        super()._clear_groups(partition_id, uids)  # type: ignore[misc]

    def _materialize_batch(self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: Any) -> Any:
        cohort = "eval" if partition_id == "val" else "trained"
        self.budget.charge(partition_id, {cohort: selected_prompt_uids}, partition_snapshot)
        return super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)  # type: ignore[misc]

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        batch, metrics = super().sample(  # type: ignore[misc]
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        if partition_id == "train":
            metrics.update(self.budget.settle(self.partitions[partition_id]))
        return batch, metrics
