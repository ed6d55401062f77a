"""Stop a run of TRL's ``GRPOTrainer`` at its budget, and keep its ledger.

TRL is imported when ``attach`` is called. What was read of it is that of TRL 1.16 with transformers 5.19.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..checks import shorten
from ..errors import BudgetError
from ..ledger.ledger import run_id_of
from ..ledger.limits import Counted, Limits
from .attachment import Attachment

__all__ = ["Attachment", "attach"]


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
    """End a trainer's run before it goes over its budget, and charge what it generates to a ledger.

    Call it before ``trainer.train()``, in every process. The step that would exceed a limit is not taken: the one
    before it is logged, evaluated and saved, as far as the trainer's strategies ask for evaluations and checkpoints at
    all. ``train(resume_from_checkpoint=...)`` goes on with the ledger at the checkpoint's step. Where not even the
    first step fits, ``train`` raises ``BudgetError``, and the ledger stays as it was.

    Args:
        trainer: A ``GRPOTrainer``, or a subclass that generates as it does.
        path: The ledger's file, which rank 0 writes.
        rollouts: At most so many are generated for training.
        response_tokens: The step that reaches it is the last that generates.
        device_hours: The step that reaches it is the last: hours since ``train`` began, times devices.
        money: The step that reaches it is the last; needs the price.
        price_per_device_hour: What an hour of a device costs, in the same currency.
        counted: What the limits on rollouts and response tokens count, see ``Limits``. With ``"used"``, a batch that
            several steps use counts step by step, so that a run ends after the same step however often it was killed.
        run_id: The run; that of the ledger, or folder/name of a new one's path, if none is given.
        devices: Devices held; as many as processes if it is not given. Count those of a vLLM server too.

    Returns:
        What was spent, and why the run was ended.

    Raises:
        BudgetError: TRL is not installed, it is another trainer, one that trains already or has a budget, or there is
            no limit or one that makes no sense.
        LedgerError: The file is not a ledger, or is of another run.
    """
    _check_trainer(trainer)
    limits = Limits.given(
        rollouts=rollouts,
        response_tokens=response_tokens,
        device_hours=device_hours,
        money=money,
        price_per_device_hour=price_per_device_hour,
        counted=counted,
    )
    path = Path(path)
    return Attachment(trainer, path, run_id=run_id or run_id_of(path), limits=limits, devices=devices)


def _check_trainer(trainer: Any) -> None:
    try:
        from trl import GRPOTrainer
    except ImportError as error:
        raise BudgetError(f"TRL cannot be imported ({error}); install it with 'pip install trl'") from None
    if not isinstance(trainer, GRPOTrainer):
        raise BudgetError(f"a budget is attached to TRL's GRPOTrainer, not to {shorten(trainer)}")
    if trainer.is_in_train:
        raise BudgetError("the trainer trains already; attach the budget before trainer.train()")
