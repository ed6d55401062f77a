"""Presets and cells that a command trains: a stand-in for a trainer, which is a process of its own."""

import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.budget import History, LedgerError

from experiments.running import cell_folder
from experiments.running.cells import CommandCell, Design, problems_hash, surroundings_of
from experiments.settings import Preset

from ..made import BASE, environment, params, preset_of

WORKER = """
import pickle, sys
from pathlib import Path
from experiments.running.command import train

cell, problems, home, base = pickle.loads(Path(sys.argv[1]).read_bytes())
train({"b": base}, cell, problems, home)
"""
SCRIPT = "stand_in.py"
FLAGS = {
    "base_model": "{model}",
    "train": "{train}",
    "validation": "{validation}",
    "ledger": "{ledger}",
    "output_dir": "{checkpoints}",
    "seed": "{seed}",
    "eval_steps": "{evaluate_steps}",
    "num_generations_eval": "{evaluation_samples}",
}


def command(**more: str) -> list[str]:
    """The command of the stand-in, with flags besides."""
    return [sys.executable, SCRIPT, *(word for k, v in (FLAGS | more).items() for word in (f"--{k}", v))]


def trainer(**changes: Any) -> dict[str, Any]:
    """Settings of the stand-in, as a preset has them."""
    return {
        "kind": "command",
        "trainer": "trl",
        "command": command(),
        "libraries": ["polars"],
        "log_settings": {"num_generations_eval": "4"},
        **changes,
    }


def preset(folder: Path, changes: dict[str, Any] | None = None, **of_trainer: Any) -> Preset:
    """The preset ``trl`` with the stand-in, which is copied beside it, and with settings changed by dotted path."""
    own = {**params()["trl"], "base": {"kind": "model", "model": str(BASE)}, "trainer": trainer(**of_trainer)}
    if not (folder / SCRIPT).exists():
        shutil.copy(Path(__file__).with_name(SCRIPT), folder / SCRIPT)
    return preset_of(folder, "trl", own, changes)


def problems() -> pl.DataFrame:
    """Eight problems of each side."""
    sides = [(side, k) for side in ("train", "validation") for k in range(8)]
    made = [{"problem_id": f"{side}{k}", "prompt": f"{k}+1=", "answer": str(k + 1), "split": side} for side, k in sides]
    return pl.DataFrame(made).with_columns(verifier=pl.lit("exact"), source=pl.lit("s"))


def cells(of: Preset) -> list[CommandCell]:
    """The cells of its sweep."""
    hashed = problems_hash(problems())
    design = Design.of(of, "easy", "base", surroundings_of(of), base="b", problems=hashed)
    rates = design.declared_rates()
    assert rates is not None
    return [cell for cell in design.cells(rates) if isinstance(cell, CommandCell)]


def home_of(cell: CommandCell) -> Path:
    """The whole path of a cell's folder, as a worker is given it."""
    return cell_folder.folder_of(cell).resolve()


def started(cell: CommandCell, of: pl.DataFrame, *, base: str) -> subprocess.Popen[bytes]:
    """A worker in a process of its own, which trains a cell."""
    home = home_of(cell)
    home.mkdir(parents=True, exist_ok=True)
    (home / "cell").write_bytes(pickle.dumps((cell, of, home, base)))
    return subprocess.Popen([sys.executable, "-c", WORKER, str(home / "cell")], env=environment())


def last_step(home: Path) -> int:
    """The last step that the command of a cell has charged."""
    try:
        return History.read(home / "run.ledger").last_step
    except LedgerError:
        return 0


def same(home: Path, other: Path) -> bool:
    """Whether two cells found the same, but for their names."""
    found = [
        [pl.read_parquet(each / f"{name}.parquet").drop("run_id") for name in ("evals", "ledger")]
        for each in (home, other)
    ]
    return all(a.equals(b) for a, b in zip(*found, strict=True))
