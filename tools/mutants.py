"""Change a number or a line that decides an answer, and see fast tests fail: ``python3 -m nox -s mutants``.

A mutant is the text of a package that is replaced, which stands there once, wherever that is, and the words that
choose its tests (``pytest -k``). It is made in a copy of the package's source, on which the package's fast tests of
that choice run. One that no test kills is a hole: write the test, and never delete the mutant. ``-- beyond`` tries
those whose text, replacement or choice has that word.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ANSWER, MODEL, DECISION = "test_saved_answer.py", "test_model.py", "test_decision.py"
MISFIT = "test_misfit.py"
REWARDS, RUNS, TRL, EVERY = "test_rewards.py", "test_evals.py", "test_trl.py", "test_registry.py"


class Mutant(NamedTuple):
    """A change, and the tests that are to notice it.

    Attributes:
        package: That it is made in.
        old: A text that stands in it exactly once.
        new: What takes its place.
        file: Name of the file of tests.
        chosen: Of its tests, as for ``pytest -k``.
    """

    package: str
    old: str
    new: str
    file: str
    chosen: str


MUTANTS = [
    Mutant(*row)
    for row in (
        ("frontier", "SURE_BEYOND = 0.8", "SURE_BEYOND = 0.7", ANSWER, "beyond"),
        ("frontier", "SURE_BEYOND = 0.8", "SURE_BEYOND = 0.85", ANSWER, "beyond"),
        ("frontier", "PARTS = 4", "PARTS = 1", ANSWER, "beyond"),
        ("frontier", "for factor in (2.0, 4.0)", "for factor in (2.0, 8.0)", ANSWER, "beyond"),
        ("frontier", "COUNTED = 4.0", "COUNTED = 8.0", ANSWER, "beyond"),
        ("frontier", "COUNTED = 4.0", "COUNTED = 3.0", ANSWER, "words"),
        ("frontier", "UNKNOWN = 1.5", "UNKNOWN = 1.3", ANSWER, "unknown"),
        ("frontier", "UNKNOWN = 1.5", "UNKNOWN = 1.7", ANSWER, "unknown"),
        ("frontier", "EARLIER = 1.5", "EARLIER = 1.3", ANSWER, "unknown"),
        ("frontier", "EARLIER = 1.5", "EARLIER = 1.7", ANSWER, "unknown"),
        ("frontier", "RISEN = 0.5", "RISEN = 0.4", ANSWER, "unknown"),
        ("frontier", "RISEN = 0.5", "RISEN = 0.6", ANSWER, "unknown"),
        ("frontier", "SLACK = 0.05", "SLACK = 0.03", ANSWER, "unknown"),
        ("frontier", "SLACK = 0.05", "SLACK = 0.07", ANSWER, "unknown"),
        ("frontier", "max(SLACK, largest / self.largest)", "SLACK", ANSWER, "unknown"),
        ("frontier", "LIKELIER = 0.5", "LIKELIER = 0.6", ANSWER, "unknown"),
        ("frontier", "FARTHEST = 64.0", "FARTHEST = 60.0", ANSWER, "distance"),
        ("frontier", "FARTHEST = 64.0", "FARTHEST = 100.0", ANSWER, "distance"),
        ("frontier", "COULD_WIN = 0.02", "COULD_WIN = 0.005", ANSWER, "misfit"),
        ("frontier", "COULD_WIN = 0.02", "COULD_WIN = 0.05", ANSWER, "misfit"),
        ("frontier", " or high[m.cell] >= floor", "", ANSWER, "misfit"),
        (
            "frontier",
            "np.where(failed > 0, self.failure_draws, self.failure_draws.mean(axis=0))",
            "self.failure_draws",
            ANSWER,
            "failed",
        ),
        ("frontier", "self.decide(whole / 4,", "self.decide(whole / 2,", ANSWER, "quarter"),
        ("frontier", "enough = compute / 4", "enough = compute / 3", ANSWER, "quarter"),
        ("frontier", "(n / cell.rollouts_per_problem) ** 0.5", "(n / cell.rollouts_per_problem)", ANSWER, "root"),
        ("frontier", "AGREED = 1.1", "AGREED = 1.3", ANSWER, "chains"),
        ("frontier", "if posterior.split_r_hat > AGREED:", "if posterior.split_r_hat < 1:", ANSWER, "chains"),
        ("frontier", 'FAR = 4.0\n"""A run', 'FAR = 3.0\n"""A run', MISFIT, "off"),
        ("frontier", 'FAR = 4.0\n"""A run', 'FAR = 5.0\n"""A run', MISFIT, "off"),
        ("frontier", "LEAST = 0.02", "LEAST = 0.03", MISFIT, "off"),
        ("frontier", "LEAST = 0.02", "LEAST = 0.01", MISFIT, "off"),
        ("frontier", "SHARE = 0.1", "SHARE = 0.15", MISFIT, "off"),
        ("frontier", "SHARE = 0.1", "SHARE = 0.07", MISFIT, "off"),
        ("frontier", "WIDER = 2.5", "WIDER = 3.0", MISFIT, "noise"),
        ("frontier", "LARGEST = 6.0", "LARGEST = 20.0", MISFIT, "leaves"),
        ("frontier", "STRETCH = 5", "STRETCH = 12", MISFIT, "leaves"),
        ("frontier", "TAIL = (-2.0, 1.5)", "TAIL = (-1.0, 1.5)", MODEL, "expected"),
        ("frontier", "TAIL = (-2.0, 1.5)", "TAIL = (-2.0, 0.5)", MODEL, "expected"),
        ("frontier", "STEEPNESS = (", "STEEPNESS = (0.1 + ", MODEL, "expected"),
        ("frontier", "STEEPNESS[1] * np.cosh(", "(", MODEL, "differences"),
        ("frontier", "STEEPNESS[1] * np.sinh(", "0.5 * STEEPNESS[1] * np.sinh(", MODEL, "expected"),
        ("frontier", "STEEPNESS[1] * np.sinh(", "STEEPNESS[1] * (", MODEL, "expected"),
        ("frontier", "STEP = (", "STEP = (0.03 + ", MODEL, "expected"),
        ("frontier", "BEND = (", "BEND = (0.02 + ", MODEL, "expected"),
        ("frontier", "RARE = (1.3", "RARE = (1.6", MODEL, "expected"),
        ("frontier", "    rising: float = 0.25", "    rising: float = 0.0", MODEL, "expected"),
        ("frontier", "    falling: float = 1.5", "    falling: float = 0.5", MODEL, "expected"),
        ("frontier", "priors.rising * expit(up)", "priors.rising * up", MODEL, "differences"),
        ("frontier", "ONSET = (", "ONSET = (0.5 + ", MODEL, "expected"),
        ("frontier", "TURN = 0.3", "TURN = 1.0", MODEL, "bent"),
        ("frontier", "    shape: float = 0.1", "    shape: float = 0.3", MODEL, "expected"),
        ("frontier", "    bend: float = ", "    bend: float = 0.1 + ", MODEL, "expected"),
        ("frontier", "seed_amplitude: float = 0.06", "seed_amplitude: float = 0.03", MODEL, "expected"),
        ("frontier", "SEED_DEGREES = 4.0, 6.0", "SEED_DEGREES = 4.0, 30.0", MODEL, "expected"),
        ("frontier", "MOST_SEEDS = 25", "MOST_SEEDS = 26", DECISION, "seeds"),
        ("frontier", "TIE = 0.001", "TIE = 0.002", DECISION, "tie"),
        ("frontier", "NEAR = 0.005", "NEAR = 0.01", DECISION, "near"),
        ("frontier", "DECIDED = 0.775", "DECIDED = 0.75", DECISION, "undecided"),
        ("frontier", "DECIDED = 0.775", "DECIDED = 0.85", DECISION, "undecided"),
        ("frontier", "np.where(known, regret, np.inf)", "regret", DECISION, "not_known"),
        ("frontier", "rewards - self.failing[:, :, None] * lost", "rewards", ANSWER, "failed"),
        ("budget", '"num_train_epochs", default=3', '"num_train_epochs", default=1', EVERY, "trl"),
        ("budget", 'whole("num_generations", default=8)', 'whole("num_generations", default=4)', EVERY, "trl"),
        ("budget", '"percent": (0.0, 100.0)', '"percent": (0.0, 1000.0)', REWARDS, "scale"),
        ("budget", "first.rows) + 1 + interval", "first.rows) + interval", RUNS, "goes_on"),
        ("budget", "_first(second, reader) <= _first(first, reader)", "False", RUNS, "goes_on"),
        ("budget", "if str(one) != str(other)", "if False", RUNS, "goes_on"),
        ("budget", "if not INCIDENTAL.fullmatch(k)", "", RUNS, "goes_on"),
        ("budget", "restarts = [*(earlier for earlier in restarts if earlier < step), step]", "pass", RUNS, "goes_on"),
        ("budget", "off < each / 2 or off < scatter", "off < 2 * each or off < scatter", TRL, "tokens"),
        ("budget", "cost, total = cost + (not agrees), 0", "cost, total = cost, 0", TRL, "tokens"),
        ("budget", "agrees is None", "agrees is True", TRL, "tokens"),
    )
]


def passes(package: str, files: Iterable[str], chosen: str, old: str = "", new: str = "") -> bool:
    """Return whether fast tests pass in a copy of the package in which a text is replaced.

    Raises:
        SystemExit: The text does not stand in the package once, or no test is chosen.
    """
    with tempfile.TemporaryDirectory() as home:
        source = Path(home, "src")
        shutil.copytree(ROOT / "packages" / package / "src", source)
        if old:
            found = [path for path in source.rglob("*.py") for _ in range(path.read_text().count(old))]
            if len(found) != 1:
                raise SystemExit(f"{package}: {old!r} stands there {len(found)} times, and must stand there once")
            found[0].write_text(found[0].read_text().replace(old, new))
        tests = [str(path) for name in files for path in (ROOT / "packages" / package / "tests").rglob(name)]
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "fast", "-k", chosen]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run([*words, *tests], cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"-k '{chosen}' of {', '.join(files)} cannot be run: {done.stdout[-2000:]}{done.stderr}")
        return done.returncode == 0


def main() -> int:
    """Try the mutants; 1 where one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    asked = [m for m in MUTANTS if not words or any(word in part for word in words for part in m)]
    for package in {m.package for m in asked}:
        own = [m for m in asked if m.package == package]
        if not passes(package, {m.file for m in own}, " or ".join({m.chosen for m in own})):
            raise SystemExit(f"{package}: its tests fail without any mutant")
    left = 0
    for mutant in asked:
        survived = passes(mutant.package, [mutant.file], mutant.chosen, mutant.old, mutant.new)
        left += survived
        print(f"{'SURVIVED' if survived else 'killed':9}{mutant.old!r} → {mutant.new!r}", flush=True)
    print(f"{left} of {len(asked)} survived")
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
