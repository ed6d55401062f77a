"""The budget of a run of veRL, as its configuration says it: ``trainer.v1.sampler.sampler_kwargs``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..checks import whole
from ..errors import BudgetError
from ..ledger.limits import Limits
from ..ledger.naming import run_id_of
from ..wording import shorten

KEYS = "trainer.v1.sampler.sampler_kwargs"
MANAGER = "actor_rollout_ref.rollout.agent.agent_loop_manager_class=isocompute.budget.verl.AgentLoopManager"
SAMPLER = (
    "trainer.v1.sampler.custom_sampler.path=pkg://isocompute.budget.verl "
    "trainer.v1.sampler.custom_sampler.name=ReplayBuffer"
)
LIMITS = ("rollouts", "response_tokens", "device_hours", "money", "price_per_device_hour", "counted")
OTHERS = ("ledger", "run_id", "devices")
READ = "0.9."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where a run's ledger is, and what it may spend.

    Attributes:
        ledger: The ledger's file; a relative path is one from the folder in which the trainer's process runs.
        run_id: The run.
        limits: The limits.
        devices: Devices held; None for those of veRL's throughput.
    """

    ledger: Path
    run_id: str
    limits: Limits
    devices: int | None

    @classmethod
    def read(cls, config: Any) -> Settings:
        """The settings of a run.

        Raises:
            BudgetError: Another version of veRL is installed, rollouts are replayed, a key is unknown, there is no
                ledger, or no limit or one that makes no sense.
        """
        _check_version()
        if config.skip.rollout_tq.enable:
            raise BudgetError(
                "skip.rollout_tq.enable=True trains on rollouts of an earlier run, so there is nothing to count; set "
                "it to False, or leave out trainer.v1.sampler.custom_sampler"
            )
        given: Mapping[str, Any] = dict(config.trainer.v1.sampler.sampler_kwargs or {})
        known = (*OTHERS, *LIMITS)
        for name in given:
            if name not in known:
                raise BudgetError(f"{KEYS}.{shorten(name)} is unknown; the budget's keys are {', '.join(known)}")
        ledger = given.get("ledger")
        if not isinstance(ledger, str) or not ledger:
            raise BudgetError(
                f"{KEYS}.ledger is {shorten(ledger)}; give the ledger's file, as in +{KEYS}.ledger=/path/run.ledger"
            )
        path = Path(ledger)
        try:
            limits = Limits.given(**{name: given[name] for name in LIMITS if name in given})
        except BudgetError as error:
            raise BudgetError(f"{KEYS}: {error}") from None
        devices = given.get("devices")
        return cls(
            ledger=path,
            run_id=given.get("run_id") or run_id_of(path),
            limits=limits,
            devices=None if devices is None else whole(devices, f"{KEYS}.devices", least=1),
        )


def _check_version() -> None:
    try:
        installed = version("verl")
    except PackageNotFoundError:
        raise BudgetError("veRL is not installed; install it with 'pip install \"verl==0.9.*\"'") from None
    if not installed.startswith(READ):
        raise BudgetError(
            f"veRL {installed} is installed, and this budget was written against 0.9, whose trainer may differ; "
            'install "verl==0.9.*"'
        )
