"""Fits on disk: ``fits.json``, ``frontier.parquet`` and the refits, written and read back to prescribe from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from ..contract.files import atomic_write, write_text
from ..errors import Flag, FrontierError
from ..fitting.curve_fit import CurveFit
from ..fitting.forms import Parameters
from ..fitting.nstar import Sigmoid
from ..fitting.uncertainty import Draws
from .candidates import Candidate, MeasuredCurves, candidates_of
from .summary import statements
from .sweep import FittedSweep


def save(fits: FittedSweep, folder: str | Path) -> None:
    """Write ``fits.json``, ``frontier.parquet`` and the refits; the same fits give the same bytes.

    Args:
        folder: Where they are written; made when it does not exist.

    Raises:
        FrontierError: The folder cannot be written to.
    """
    folder = Path(folder)
    document = {
        "unit": fits.unit,
        "metric": fits.metric,
        "degrees": fits.degrees,
        "within_run": fits.within_run,
        "questions_sampled": fits.questions_sampled,
        "statements": statements(fits) if fits.fitted else [],
        "curves": [c.as_dict() for c in fits.curves],
        "crossovers": [x.as_dict() for x in fits.crossovers],
        "n_star": fits.n_star.as_dict(),
        "points": fits.points,
        "selection": fits.selection,
        "saturation": fits.saturation.as_dict() if fits.saturation else None,
        "not_distinguishable": [
            [
                {
                    "rollouts_per_problem": c.curve.rollouts_per_problem,
                    "problems_per_batch": c.curve.problems_per_batch,
                }
                for c in (fits.fitted[a], fits.fitted[b])
            ]
            for a, b in fits.alike
        ],
    }
    write_text(folder / "fits.json", json.dumps(document, indent=1, sort_keys=True) + "\n", error=FrontierError)
    if fits.fitted:
        write_parquet(fits.frontier_table(), folder / "frontier.parquet")
        write_parquet(_draws_table(fits.fitted), folder / "refits.parquet")


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write a table in the format of the others.

    Raises:
        FrontierError: It cannot be written.
    """
    with atomic_write(path, error=FrontierError) as stream:
        frame.write_parquet(stream, compression="zstd", statistics=False)


def _draws_table(fitted: list[CurveFit]) -> pl.DataFrame:
    parts = []
    for c in fitted:
        assert c.draws is not None
        d = c.draws
        parts.append(
            pl.DataFrame(
                {
                    "rollouts_per_problem": pl.repeat(c.curve.rollouts_per_problem, len(d.start), eager=True),
                    "problems_per_batch": pl.repeat(c.curve.problems_per_batch, len(d.start), eager=True),
                    "group": pl.repeat(c.curve.group, len(d.start), eager=True),
                    "form": d.form.tolist(), "start": d.start, "gain": d.gain, "scale": d.scale,
                    "shape": d.shape,
                }
            )
        )  # fmt: skip
    return pl.concat(parts)


def measured_by(source: FittedSweep | str | Path) -> MeasuredCurves:
    """Curves of fits in memory or in the folder that ``Fits.save`` wrote.

    Raises:
        FrontierError: The folder holds no fits, or they are damaged, or no curve was fitted.
    """
    found = candidates_of(source) if isinstance(source, FittedSweep) else _load(Path(source))
    if not found.curves:
        raise FrontierError("no curve could be fitted, so there is nothing to prescribe from")
    return found


def n_star_of(folder: Path) -> tuple[Sigmoid, float]:
    """The sigmoid of n*(C) that a fit wrote, without its intervals, and the most compute that is behind it.

    Raises:
        FrontierError: The folder holds no fits, or they are damaged.
    """
    with _reading(folder) as document:
        found = document["n_star"]
        last = max(float(c["support"][1]) for c in document["curves"])
        flags = tuple(Flag(f) for f in found["flags"])
        return Sigmoid(params=found["params"], intervals={}, flags=flags, constant=found["constant"]), last


@contextmanager
def _reading(folder: Path) -> Iterator[dict[str, Any]]:
    """``fits.json``, and one sentence for whatever is wrong with what is read of it and beside it."""
    path = folder / "fits.json"
    if not path.is_file():
        raise FrontierError(f"{folder}: holds no fits.json; make one with `isocompute-frontier fit`")
    try:
        yield json.loads(path.read_text())
    except FrontierError:
        raise
    except (OSError, KeyError, ValueError, pl.exceptions.PolarsError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise FrontierError(f"{folder}: the fits are damaged or of another version ({what}): fit again") from None


def _load(folder: Path) -> MeasuredCurves:
    with _reading(folder) as document:
        if document.get("method") == "paper":
            raise FrontierError(f"{folder}: the paper's method has no intervals to prescribe from: fit without it")
        refits = pl.read_parquet(folder / "refits.parquet")
        found = []
        for entry in document["curves"]:
            if entry["params"] is None:
                continue
            rows = refits.filter(
                (pl.col("rollouts_per_problem") == entry["rollouts_per_problem"])
                & (pl.col("problems_per_batch") == entry["problems_per_batch"])
                & (pl.col("group") == (entry["group"] or ""))
            )
            draws = Draws(
                form=rows["form"].to_numpy().astype(str),
                **{k: rows[k].to_numpy() for k in ("start", "gain", "scale", "shape")},
            )
            found.append(
                Candidate(
                    rollouts_per_problem=entry["rollouts_per_problem"],
                    problems_per_batch=entry["problems_per_batch"],
                    parameters=Parameters.of(entry["form"], entry["params"]),
                    draws=draws, support=tuple(entry["support"]),
                    flags=tuple(Flag(f) for f in entry["flags"]),
                )
            )  # fmt: skip
        return MeasuredCurves(
            unit=document["unit"], metric=document["metric"], degrees=float(document["degrees"]), curves=tuple(found)
        )
