"""Several ledgers as one account: what survived + what was lost = what was paid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BudgetError, LedgerError
from ..wording import reason
from . import frames
from .counts import TRAINING_COHORTS
from .history import History
from .tabulation import COUNTED

if TYPE_CHECKING:
    import polars as pl

GROUPS = ("cohort", "phase", "step", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The charges of one or more runs.

    Attributes:
        ledger: The ``ledger`` table: the canonical attempts.
        lost_work: The columns of the ``ledger`` table and ``attempt``: paid for and lost.
        histories: The ledgers it was read from; a table that was read as such has none.
        tables: The sources that were tables, which hold no lost work.
    """

    ledger: pl.DataFrame
    lost_work: pl.DataFrame
    histories: tuple[History, ...]
    tables: tuple[str, ...]

    def by(self, group: str) -> pl.DataFrame:
        """Sum by ``cohort``, ``phase`` (training, eval, pilot), ``step`` or ``run``.

        Returns:
            The group, then for ``rollouts``, ``prompt_tokens`` and ``response_tokens`` each the canonical
            sum, ``lost_…`` and ``paid_…``. By step or run, ``eval`` and ``pilot`` rows are summed with the
            rest, since they were paid for as well.

        Raises:
            BudgetError: There is no such group.
        """
        import polars as pl

        if group not in GROUPS:
            raise BudgetError(f"there are no sums by {group!r}; choose one of {', '.join(GROUPS)}")
        key: str | pl.Expr = "run_id" if group == "run" else group
        if group == "phase":
            training = pl.col("cohort").is_in(TRAINING_COHORTS)
            key = pl.when(training).then(pl.lit("training")).otherwise("cohort").alias("phase")
        kept = self.ledger.group_by(key).agg(pl.col(COUNTED).sum())
        lost = self.lost_work.group_by(key).agg(pl.col(COUNTED).sum().name.prefix("lost_"))
        key = kept.columns[0]
        joined = kept.join(lost, on=key, how="full", coalesce=True).fill_null(0).sort(key)
        paid = [(pl.col(name) + pl.col(f"lost_{name}")).alias(f"paid_{name}") for name in COUNTED]
        ordered = [f"{prefix}{name}" for name in COUNTED for prefix in ("", "lost_", "paid_")]
        return joined.with_columns(paid).select(key, *ordered)


def account(sources: Sequence[str | Path]) -> Account:
    """Read ledgers and ``ledger`` tables into one account, counting nothing twice.

    Args:
        sources: Ledger files, folders of them (files that begin as a ledger does, or end in ``.ledger``),
            and tables as ``tables.read`` takes them (Parquet, CSV, ``mlflow:EXPERIMENT``, ``runs:/RUN_ID``).
            An earlier copy of a ledger next to it is left out.

    Raises:
        LedgerError: A ledger is damaged, or two ledgers of one run differ.
        TableError: A table is not what it should be, or two disagree about a charge.
    """
    import polars as pl

    from ..contract import tables

    histories: list[History] = []
    others: list[str] = []
    for source in sources:
        found = _ledger_files(source)
        histories += [History.read(path) for path in found]
        if not found:
            others.append(str(source))
    histories = [history for history in drop_copies(histories) if history.run_id]
    where = ", ".join(str(source) for source in sources)
    # One frame of all runs first: checking a thousand small tables one by one takes longer than reading them.
    recorded = pl.concat([history.table() for history in histories]) if histories else pl.DataFrame()
    parts = [recorded] if not recorded.is_empty() else []
    parts += [tables.read(source, "ledger") for source in others]
    if not parts:
        raise LedgerError(f"{where}: nothing was charged yet")
    nothing = pl.DataFrame(schema={**parts[0].schema, "attempt": pl.Int64()})
    lost = pl.concat(
        [nothing, *(history.lost_work() for history in histories if len(history.resumed_from) > 1)],
        how="diagonal_relaxed",
    )
    return Account(
        ledger=tables.concat(parts, "ledger", where=where),
        lost_work=lost.sort("run_id", "step", "cohort", "attempt"),
        histories=tuple(histories),
        tables=tuple(others),
    )


def drop_copies(histories: Iterable[History]) -> list[History]:
    """Leave out copies among several ledgers, so that merging them counts nothing twice.

    Returns:
        One history per run; of a ledger and an earlier copy of it, the longer one.

    Raises:
        LedgerError: Two ledgers of one run differ.
    """
    kept: dict[str, History] = {}
    for history in histories:
        other = kept.setdefault(history.run_id, history)
        shorter, longer = sorted((other, history), key=lambda h: h.records)
        columns = [
            (shorter.resumed_from, longer.resumed_from),
            # Two runs may charge the same, and were both paid for: their attempts differ in salt.
            (shorter.origins, longer.origins),
            *zip(shorter.charges.columns(), longer.charges.columns(), strict=True),
        ]
        agree = all(ours == theirs[: len(ours)] for ours, theirs in columns)
        if not agree:
            raise LedgerError(
                f"{shorter.where} and {longer.where} are both ledgers of run {history.run_id} and differ; "
                "leave out the one that is not the run's own"
            )
        kept[history.run_id] = longer
    return list(kept.values())


def _ledger_files(source: str | Path) -> list[Path]:
    """The ledger files that a source names; none when it is a table."""
    path = Path(source)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file() and _is_ledger(file))
    if str(source).startswith(("mlflow:", "runs:/")) or path.suffix in {".parquet", ".csv"}:
        return []
    return [path]


def _is_ledger(path: Path) -> bool:
    if path.suffix == ".ledger":
        return True
    try:
        with path.open("rb") as stream:
            return frames.is_ledger(stream.read(len(frames.LINE)))
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({reason(error)})") from None
