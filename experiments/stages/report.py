"""Write the report, and what ``dvc metrics`` and ``dvc plots`` show of it."""

from __future__ import annotations

import json
from typing import Any

from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import atomic_write, write_text

from ..rates.record import Pilot
from ..report.documents import document
from ..report.gains import gains
from ..report.page import write
from ..settings import Preset
from .shared import OUT, log

METRICS = OUT / "report" / "metrics.json"
PLOTS = OUT / "report" / "plots"
SHOWN = (("frontier", "frontier"), ("frontier", "curves"), ("frontier", "n_star"), ("sweep", "rates"))
"""Stage and name of the figures of each problem set."""
PRESCRIBED = ("rollouts_per_problem", "problems_per_batch", "update_steps", "learning_rate")


def run(preset: Preset) -> None:
    """Write one self-contained HTML file from what the other stages wrote, its numbers and its figures."""
    path = write(preset, OUT)
    shown = {name: numbers(preset, name) for name in preset.sweep}
    write_text(METRICS, json.dumps(shown, sort_keys=True, indent=1) + "\n")
    figures = {
        f"{name}-{figure}.png": OUT / stage / name / f"{figure}.png" for name in shown for stage, figure in SHOWN
    }
    figures["difficulty.png"] = OUT / "difficulty" / "histogram.png"
    for name, figure in figures.items():
        if figure.exists():
            with atomic_write(PLOTS / name) as stream:
                stream.write(figure.read_bytes())
    print(f"report: {path}")
    log(preset, "report", {"report": path})


def numbers(preset: Preset, name: str) -> dict[str, Any]:
    """Of a problem set: the base model's scores, the last evaluations by (n, B_p), and what was prescribed."""
    sweep, metric = OUT / "sweep" / name, preset.evaluation.metric
    states, pilot = document(sweep / "cells.json")["cells"], Pilot.read(document(sweep / "pilot.json"))
    evals = tables.read(sweep / "evals.parquet", "evals")
    found = gains(evals, metric, states, pilot.base.score, pilot.base.standard_error)
    allocation = document(OUT / "prescribe" / name / "allocation.json")
    return {
        "base": {side: each["fresh"] for side, each in document(OUT / "difficulty" / "base.json")[name].items()},
        "last": {f"n_{g.rollouts_per_problem}_batch_{g.problems_per_batch}": g.last for g in found},
        "prescribed": {key: allocation[key] for key in PRESCRIBED if key in allocation},
    }
