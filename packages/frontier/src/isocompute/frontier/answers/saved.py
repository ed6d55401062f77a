"""A fitted posterior on disk: ``posterior.json``, ``draws.parquet`` and ``runs.parquet``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..contract.files import write_text
from ..data.files import write_parquet
from ..errors import FrontierError
from ..posterior.health import Finding, Health, Kind
from ..posterior.model import Model
from ..posterior.posterior import Posterior
from ..posterior.preparation import Failures, Prepared
from ..posterior.priors import Priors
from ..posterior.runs import Cell, Runs, padded
from . import paper
from .fitted import Fitted

DOCUMENT, DRAWS, RUNS = "posterior.json", "draws.parquet", "runs.parquet"


def save(fitted: Fitted, folder: str | Path) -> None:
    """Write a posterior; the same one gives the same bytes.

    Args:
        folder: Where it is written; made when it does not exist.

    Raises:
        FrontierError: The folder cannot be written to.
    """
    folder = Path(folder)
    prepared, model = fitted.prepared, fitted.posterior.model
    document = {
        "metric": fitted.metric, "unit": fitted.unit, "seed": fitted.seed, "spread": fitted.posterior.spread,
        "error_is_known": model.runs.error_is_known, "priors": asdict(model.priors),
        "cells": [asdict(c) for c in model.runs.cells], "bases": model.runs.bases, "notes": prepared.notes,
        "health": [{**asdict(h), "spikes": [int(k) for k in h.spikes]} for h in prepared.health],
        "failures": [
            {"cell": asdict(c), "failed": f.failed, "runs": int(f.runs), "reward": f.reward}
            for c, f in prepared.failures.items()
        ],
        "tokens_per_rollout": fitted.tokens_per_rollout, "caveats": fitted.caveats,
        "questions_sampled": fitted.posterior.luck is not None,
    }  # fmt: skip
    columns = {f"x{k}": values for k, values in enumerate(fitted.posterior.theta.T)}
    if fitted.posterior.luck is not None:
        flat = fitted.posterior.luck.reshape(len(fitted.posterior.luck), -1)
        columns |= {f"luck{k}": values for k, values in enumerate(flat.T)}
    write_parquet(pl.DataFrame(columns), folder / DRAWS)
    write_parquet(_runs_table(model.runs), folder / RUNS)
    # Last, since it says that the others are there.
    write_text(folder / DOCUMENT, json.dumps(document, indent=1, sort_keys=True) + "\n", error=FrontierError)


def load(folder: str | Path) -> Fitted:
    """Read what ``save`` wrote.

    Raises:
        FrontierError: The folder holds no posterior, or a damaged one.
    """
    folder = Path(folder)
    if not (folder / DOCUMENT).is_file() and (folder / paper.DOCUMENT).is_file():
        raise FrontierError(f"{folder}: the paper's method has no intervals to prescribe from: fit without it")
    if not (folder / DOCUMENT).is_file():
        raise FrontierError(f"{folder}: holds no {DOCUMENT}; make one with `isocompute-frontier fit`")
    try:
        document = json.loads((folder / DOCUMENT).read_text())
        runs = _runs(pl.read_parquet(folder / RUNS), document)
        model = Model(runs=runs, priors=_priors(document["priors"]))
        draws = pl.read_parquet(folder / DRAWS)
        theta, luck = draws.select(pl.col("^x.*$")).to_numpy(), None
        if document["questions_sampled"]:
            luck = draws.select(pl.col("^luck.*$")).to_numpy().reshape(len(draws), 2, -1)
        if theta.shape[1] != model.size:
            raise ValueError(f"{theta.shape[1]} columns of draws for {model.size} numbers")
        prepared = Prepared(
            runs=runs, health=tuple(_health(h) for h in document["health"]), notes=tuple(document["notes"]),
            failures={
                Cell(**f["cell"]): Failures(failed=f["failed"], runs=f["runs"], reward=f["reward"])
                for f in document["failures"]
            },
        )  # fmt: skip
        return Fitted(
            metric=document["metric"], unit=document["unit"], prepared=prepared, seed=document["seed"],
            posterior=Posterior(model=model, theta=theta, spread=document["spread"], luck=luck),
            tokens_per_rollout=tuple(document["tokens_per_rollout"]), caveats=tuple(document["caveats"]),
        )  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise FrontierError(f"{folder}: the posterior is damaged or of another version ({what}): fit again") from None


def _runs_table(runs: Runs) -> pl.DataFrame:
    row, point = np.nonzero(runs.seen)
    columns: dict[str, Any] = {
        "run": row, "cell": runs.cell[row], "base": runs.base_of_run[row], "compute": runs.compute[row, point],
        "reward": runs.reward[row, point], "error": runs.error[row, point],
    }  # fmt: skip
    if runs.trials is not None:
        columns["trials"] = runs.trials[row, point]
    return pl.DataFrame(columns)


def _runs(table: pl.DataFrame, document: dict[str, Any]) -> Runs:
    each = table.partition_by("run", maintain_order=True)
    lengths = np.array([len(own) for own in each])

    def column(name: str, fill: float) -> np.ndarray:
        return padded([own[name].to_numpy() for own in each], fill)

    return Runs(
        cells=tuple(Cell(**c) for c in document["cells"]), cell=np.array([own["cell"][0] for own in each]),
        compute=column("compute", 1.0), reward=column("reward", 0.0), error=column("error", 1.0),
        seen=np.arange(lengths.max()) < lengths[:, None],
        trials=column("trials", 1.0) if "trials" in table.columns else None,
        error_is_known=document["error_is_known"], bases=tuple(document["bases"]),
        base=np.array([own["base"][0] for own in each]),
    )  # fmt: skip


def _priors(values: dict[str, Any]) -> Priors:
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return Priors(**plain)


def _health(values: dict[str, Any]) -> Health:
    findings = tuple(Finding(**{**f, "kind": Kind(f["kind"])}) for f in values["findings"])
    return Health(**{**values, "findings": findings, "spikes": tuple(values["spikes"])})
