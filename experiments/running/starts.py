"""The evaluation before the first update, which cells of one seed share: made once, charged once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.budget import Counts, counts_by_cohort
from isocompute.rollout import EvaluationResult
from isocompute.rollout.contract import tables

from .work import write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A first evaluation.

    Attributes:
        cost: ``rollouts``, ``prompt_tokens`` and ``response_tokens``.
        pass_rates: ``problem_id``, ``successes``, ``samples``.
    """

    metrics: Mapping[str, float]
    questions: int
    samples: int
    cost: Mapping[str, int]
    pass_rates: pl.DataFrame

    @classmethod
    def of(cls, result: EvaluationResult) -> Start:
        """From an evaluation of the base model."""
        return cls(
            metrics=dict(result.metrics),
            questions=result.questions,
            samples=result.samples,
            cost=cost(result.rollouts),
            pass_rates=result.pass_rates,
        )


def cost(rollouts: pl.DataFrame) -> dict[str, int]:
    """Count what a ``rollouts`` table cost: ``rollouts``, ``prompt_tokens``, ``response_tokens``."""
    counts = counts_by_cohort(rollouts.with_columns(cohort=pl.lit("eval")))
    return asdict(counts.get("eval", Counts()))


def ledger(run_id: str, spent: Mapping[str, int]) -> pl.DataFrame:
    """One evaluation outside of any run as a ``ledger`` table of its own."""
    row = {"run_id": run_id, "step": 0, "cohort": "eval", **spent}
    return tables.check(pl.DataFrame([row]), "ledger", where=f"run {run_id}")


def exists(folder: Path) -> bool:
    """Whether a first evaluation is there."""
    return (folder / "evaluation.json").exists()


def write(folder: Path, start: Start) -> None:
    """Keep a first evaluation; the document goes last, so that it is there whole or not at all."""
    rates = start.pass_rates.with_columns(run_id=pl.lit(folder.name), step=pl.lit(0, dtype=pl.Int64))
    tables.write(rates, "pass_rates", folder / "pass_rates.parquet")
    tables.write(ledger(folder.name, start.cost), "ledger", folder / "ledger.parquet")
    plain: dict[str, Any] = {k: v for k, v in asdict(start).items() if k != "pass_rates"}
    write_json(folder / "evaluation.json", plain)


def read(folder: Path) -> Start:
    """Read a first evaluation."""
    plain = json.loads((folder / "evaluation.json").read_text())
    rates = tables.read(folder / "pass_rates.parquet", "pass_rates").select("problem_id", "successes", "samples")
    return Start(**plain, pass_rates=rates)
