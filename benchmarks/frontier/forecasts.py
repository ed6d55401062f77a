"""Forecasts of single runs from a part of them, by the posterior, the papers' own curves and a line in log C.

    python -m benchmarks.frontier.forecasts [--scalerl points.csv] [--panel 12] [--old TREE] [--seed 0]

Runs: series of ScaleRL's Figure 2 (a table of ``series``, ``phase``, ``gpu_hours`` and ``pass_rate``, which is not in
the repository), the IsoCompute Playbook's points, and some runs of the panel. Cuts: where the paper ends its own fit, a
half and a quarter of the last compute. The prior leaves out the published fit of the run that is forecast. Of each
forecast: rmse of what came later, error of the last evaluation, share of later evaluations inside the 95 % interval.
With ``--old`` the default of ``predict`` in another checkout (before it was the posterior) is run in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from isocompute.frontier import ForecastConfig, FrontierError, forecast
from isocompute.frontier.fitting.point import Parameters, fit_form

ROOT = Path(__file__).parents[2]
PLAYBOOK = ROOT / "packages" / "frontier" / "docs" / "playbook-easy.csv"
PANEL = ROOT / "experiments" / "studies" / "panel" / "results"
OWN_FITS = {
    "ScaleRL": ("ScaleRL",),
    "MiniMax": ("MiniMax", "base-CISPO"),
    "DeepSeek-GRPO": ("DeepSeek",),
    "Magistral": ("Magistral",),
    "Qwen2.5-DAPO": ("Qwen2.5",),
}
"""Published fits of the runs of Figure 2."""
WITHIN = 0.02
"""Reward within which an end is as it was forecast (ScaleRL)."""
PATHS = ("budget", "frontier")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run and a cut.

    Attributes:
        kind: What the means are over.
        name: Of the run.
        without: Published fits of it.
    """

    kind: str
    name: str
    compute: np.ndarray
    reward: np.ndarray
    cut: float
    without: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Score:
    """What came of a forecast.

    Attributes:
        end: Error of the last evaluation.
        coverage: Share of later evaluations inside the 95 % interval; not a number where there is none.
    """

    rmse: float
    end: float
    coverage: float = np.nan
    note: str = ""


def cases(scalerl: Path | None, panel: int) -> Iterator[Case]:
    """All runs with their cuts."""
    if scalerl:
        for (name,), rows in pl.read_csv(scalerl).sort("gpu_hours").group_by("series", maintain_order=True):
            compute, reward = (rows[c].to_numpy().astype(float) for c in ("gpu_hours", "pass_rate"))
            paper = rows.filter(pl.col("phase") == "train")["gpu_hours"].max()
            for kind, cut in (("paper's cut", paper), ("half", compute[-1] / 2), ("quarter", compute[-1] / 4)):
                own = {"compute": compute, "reward": reward, "without": OWN_FITS.get(str(name), ())}
                yield Case(kind=f"ScaleRL, {kind}", name=str(name), cut=float(str(cut)), **own)  # type: ignore[arg-type]
    for (n,), rows in pl.read_csv(PLAYBOOK).sort("rollouts").group_by("rollouts_per_problem", maintain_order=True):
        yield from _halves("Playbook", f"n = {n}", rows)
    for k in range(panel):
        units = sorted(PANEL.iterdir())
        evals = pl.read_parquet(units[k % len(units)] / "evals.parquet").sort("run_id", "rollouts")
        whole = [
            rows
            for _, rows in evals.group_by("run_id", maintain_order=True)
            if rows["rollouts"][0] == 0 and rows["rollouts"][-1] == evals["rollouts"].max() and len(rows) > 12
        ]
        yield from _halves("panel", f"{units[k % len(units)].name} {k}", whole[(7 * k + 3) % len(whole)])


def _halves(kind: str, name: str, rows: pl.DataFrame) -> Iterator[Case]:
    compute, reward = (rows[c].to_numpy().astype(float) for c in ("rollouts", "avg_at_4"))
    for part, share in (("half", 0.5), ("quarter", 0.25)):
        yield Case(kind=f"{kind}, {part}", name=name, compute=compute, reward=reward, cut=compute[-1] * share)


def scores(case: Case, seed: int, old: Path | None) -> dict[str, Score]:
    """Every method's score."""
    x, y, later = case.compute, case.reward, case.compute > case.cut
    used = ~later & (x > 0)
    config = ForecastConfig(fit_max=case.cut, without=case.without, seed=seed)
    found = forecast(x, y, config)
    extension = found.extension
    assert extension is not None
    assert extension.coverage is not None
    end = found.at(float(x[-1]))[0] - float(y[-1])
    scored = {"posterior": Score(rmse=extension.rmse, end=end, coverage=extension.coverage, note=extension.verdict)}
    error = np.full(int(used.sum()), 0.01)
    for form in ("hill", "power"):
        curve = fit_form(form, x[used], y[used], error, float(y[x == 0].mean()) if (x == 0).any() else None)
        scored[form] = _score(curve, case, later)
    slope, level = np.polyfit(np.log(x[used]), y[used], 1)
    line = level + slope * np.log(x[later]) - y[later]
    scored["line in log C"] = Score(rmse=float(np.sqrt((line**2).mean())), end=float(line[-1]))
    if old:
        scored["old predict"] = _old(case, old)
    return scored


def _score(curve: Parameters, case: Case, later: np.ndarray) -> Score:
    miss = curve(case.compute[later]) - case.reward[later]
    note = "A = 1" if curve.asymptote > 0.999 else ""
    return Score(rmse=float(np.sqrt((miss**2).mean())), end=float(miss[-1]), note=note)


def _old(case: Case, tree: Path) -> Score:
    """The default of ``predict`` in another checkout."""
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder, "run.csv"), Path(folder, "found.json")
        pl.DataFrame({"C": case.compute, "R": case.reward}).write_csv(table)
        main = "import sys; from isocompute.frontier.cli import main; sys.exit(main(sys.argv[1:]))"
        words = ("predict", str(table), "--x", "C", "--y", "R", "--fit-max", str(case.cut), "--json", str(out))
        path = os.pathsep.join(str(tree / "packages" / name / "src") for name in PATHS)
        done = subprocess.run(
            [sys.executable, "-c", main, *words], env={**os.environ, "PYTHONPATH": path}, capture_output=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        found = json.loads(out.read_text())
    extension, named = found["extension"], found["params"]
    curve = Parameters(
        form="hill", start=named["R0"], gain=named["A"] - named["R0"], scale=named["C_mid"], shape=named["B"]
    )
    end = float(curve(case.compute[-1])) - float(case.reward[-1])
    return Score(rmse=extension["rmse"], end=end, coverage=extension["coverage"], note=extension["verdict"])


def main() -> None:
    """Print every forecast of ScaleRL's series, and means over runs of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scalerl", type=Path, help="points of its series")
    parser.add_argument("--panel", type=int, default=12, help="runs of the panel")
    parser.add_argument("--old", type=Path, metavar="TREE", help="a checkout whose predict is run in turns")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    table: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for case in cases(arguments.scalerl, arguments.panel):
        try:
            found = scores(case, arguments.seed, arguments.old)
        except FrontierError as error:
            print(f"{case.kind}: {case.name}: {error}", flush=True)
            continue
        for method, score in found.items():
            table[case.kind, method].append(score)
        if case.kind.startswith("ScaleRL"):
            parts = [f"{m} {s.rmse:.4f} ({s.end:+.4f}) {s.note}".rstrip() for m, s in found.items()]
            print(f"{case.kind}: {case.name}: rmse (error of the end): {', '.join(parts)}", flush=True)
    print(f"\n{'':24}{'':16}   rmse   ends within {WITHIN}   in the 95 % interval")
    for (kind, method), own in table.items():
        within = sum(abs(s.end) <= WITHIN for s in own)
        covered = float(np.mean([s.coverage for s in own]))
        line = f"{kind:24}{method:16} {np.mean([s.rmse for s in own]):.4f}   {within:>2} of {len(own):<12}"
        print(line + ("" if np.isnan(covered) else f"   {covered:.1%}"))


if __name__ == "__main__":
    main()
