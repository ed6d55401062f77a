"""The evaluation before the first update, which cells of one seed share: made once, charged once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import polars as pl
from isocompute.budget import Counts, counts_by_cohort
from isocompute.rollout import EvaluationResult
from isocompute.rollout.contract import tables

from .work import write_json


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


def write(folder: Path, found: EvaluationResult) -> None:
    """Keep a first evaluation; the document goes last, so that it is there whole or not at all."""
    rates = found.pass_rates.with_columns(run_id=pl.lit(folder.name), step=pl.lit(0, dtype=pl.Int64))
    tables.write(rates, "pass_rates", folder / "pass_rates.parquet")
    tables.write(ledger(folder.name, cost(found.rollouts)), "ledger", folder / "ledger.parquet")
    plain = {"metrics": dict(found.metrics), "questions": found.questions, "samples": found.samples}
    write_json(folder / "evaluation.json", plain)


def read(folder: Path) -> EvaluationResult:
    """Read a first evaluation, without its responses."""
    plain = json.loads((folder / "evaluation.json").read_text())
    rates = tables.read(folder / "pass_rates.parquet", "pass_rates").select("problem_id", "successes", "samples")
    return EvaluationResult(**plain, pass_rates=rates, rollouts=pl.DataFrame())
