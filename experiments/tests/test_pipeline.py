"""The whole loop on the preset ``smoke``: real vLLM, Ray, MLflow and DVC, as a newcomer runs it.

``nox -s soak`` has both of its problem sets, and ends it again and again.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl
import psutil
import pytest
import yaml
from safetensors.torch import load_file

from experiments.__main__ import main

from .made import BASE, ROOT, copied, edit, params, sources

pytestmark = [pytest.mark.slow("the whole pipeline"), pytest.mark.xdist_group("traces")]

KILLS = int(os.environ.get("ISOCOMPUTE_PIPELINE_KILLS", "0"))
"""How often ``test_pipeline_kills.py`` ends it."""
SETS = ("easy", "hard") if KILLS else ("easy",)
# Each takes seconds to start, more than cells this small save by running at once.
WORKERS = 2 if KILLS else 1


def clone(folder: Path, resources: Mapping[str, object]) -> Path:
    """Copy what the stages read, with ``smoke`` as the preset."""
    copied(folder)
    (folder / ".dvc").mkdir()
    for name in ("dvc.yaml", "constraints.txt", ".dvcignore", ".dvc/config"):
        shutil.copy(ROOT / name, folder / name)
    settings = {**params(), "preset": "smoke", "problem_sets": list(SETS), "tested_sets": ["easy"]}
    smoke = settings["smoke"]
    smoke["resources"].update({"workers": WORKERS, **resources})
    for section, part in ((smoke, "sweep"), (smoke["difficulty"], "sets")):
        section[part] = {name: section[part][name] for name in SETS}
    (folder / "params.yaml").write_text(yaml.safe_dump(settings))
    (folder / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n")
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Variables of a command in such a folder, which imports what is there."""
    others = ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "ISOCOMPUTE_SESSION")
    kept = {name: value for name, value in os.environ.items() if name not in others}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": sources(folder)}


def run(folder: Path, *command: str) -> str:
    """Run a command there; returns what it printed."""
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def dvc(folder: Path, *arguments: str) -> str:
    return run(folder, sys.executable, "-m", "dvc", *arguments)


def modified(folder: Path, pattern: str) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in sorted(folder.glob(pattern))}


def listening(process: psutil.Process) -> Iterator[tuple[str, str]]:
    """Name and address of every process below one that waits for others to call."""
    for each in process.children(recursive=True):
        # Processes end meanwhile.
        with contextlib.suppress(psutil.Error):
            name = each.name()
            yield from ((name, c.laddr.ip) for c in each.net_connections(kind="inet") if c.status == "LISTEN")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A tree where everything ran, and what was printed; ``listening.json`` there says who waited for calls."""
    folder = clone(tmp_path_factory.mktemp("first"), {})
    found: set[tuple[str, str]] = set()
    with (folder / "printed").open("w+") as said:
        process = psutil.Popen(
            [sys.executable, "-m", "experiments", "repro"],
            cwd=folder,
            env=environment(folder),
            stdout=said,
            stderr=said,
        )
        while process.poll() is None:
            found |= {*listening(process)}
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(10)
    printed = (folder / "printed").read_text()
    assert process.returncode == 0, printed[-4000:]
    (folder / "listening.json").write_text(json.dumps(sorted(found)))
    return folder, printed


def test_nothing_listens_on_an_address_that_others_reach(finished: tuple[Path, str]) -> None:
    places = json.loads((finished[0] / "listening.json").read_text())
    # Ray's own processes, and the workers with their engines.
    assert {name.split("::")[0] for name, _ in places} >= {"raylet", "gcs_server", "ray"}
    assert [place for place in places if place[1] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == []


def test_it_prints_what_was_found(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    end = printed[printed.index("easy, from base") :]
    parts = ("before training:", "At 96 rollouts", "Risk: ", "Spent (rollouts): ", "pilots: training", "sweep@easy")
    tested = "Tested: trained at 96 rollouts with fresh seeds, n = "
    for expected in (*parts, tested, "Seconds: prepare", f"outputs/frontier/{SETS[-1]}/report.html", "nox -s ui"):
        assert expected in end, expected
    page = (folder / "outputs" / "frontier" / "easy" / "report.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "")
    for expected in ("The decision", "as selected", "measured again", "pilots: evaluation", "not judged", "Pilots"):
        assert expected in page, expected


def test_pilots_are_charged_as_pilots_and_measure_nothing(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    smoke = yaml.safe_load((folder / "params.yaml").read_text())["smoke"]
    for problem_set in SETS:
        out = folder / "outputs" / "sweep" / problem_set
        settings, found = smoke["sweep"][problem_set], json.loads((out / "pilot.json").read_text())
        ledger = pl.read_parquet(out / "ledger.parquet")
        assert found["rule"] == settings["learning_rate"]["rule"]
        states = json.loads((out / "cells.json").read_text())["cells"]
        batches = [
            state["steps"] * state["rollouts_per_problem"] * state["problems_per_batch"]
            for state in states
            if state["purpose"] == "pilot"
        ]
        assert ledger.filter(pl.col("cohort") == "pilot")["rollouts"].sum() == sum(batches) > 0
        assert set(pl.read_parquet(out / "evals.parquet")["seed"]) == set(settings["seeds"])
        chosen = {each["rollouts_per_problem"]: each["learning_rate"] for each in found["searches"]}
        for state in states:
            pilots = state["purpose"] == "pilot"
            assert (state["seed"] in settings["learning_rate"]["seeds"]) == pilots
            if not pilots and found["rule"] == "tuned":
                assert state["learning_rate"] == chosen[state["rollouts_per_problem"]]


def test_the_policies_that_were_tested_are_kept_as_models(finished: tuple[Path, str]) -> None:
    tested, swept = (
        json.loads((finished[0] / "outputs" / stage / "easy" / "cells.json").read_text())["cells"]
        for stage in ("prescribe", "sweep")
    )
    base = load_file(BASE / "model.safetensors")
    for state in tested:
        trained = load_file(finished[0] / state["policy"] / "model.safetensors")
        assert any(not trained[name].equal(base[name]) for name in trained.keys() & base.keys())
    assert {state["policy"] for state in swept} == {None}


@pytest.mark.parametrize("problem_set", SETS)
def test_the_scores_at_step_0_agree_with_the_fresh_measure(finished: tuple[Path, str], problem_set: str) -> None:
    """Both are of responses that selected nothing, to the same questions: within four standard errors."""
    folder, _ = finished
    table = pl.read_parquet(folder / "outputs" / "prepared" / "base" / f"{problem_set}.parquet")
    rate = table.filter(pl.col("split") == "validation")["fresh_pass_rate"].to_numpy()
    fresh = json.loads((folder / "outputs" / "prepared" / "base" / "base.json").read_text())[problem_set]["validation"]
    assert fresh["fresh"] == pytest.approx(rate.mean())
    for stage in ("sweep", "prescribe"):
        path = folder / "outputs" / stage / problem_set / "evals.parquet"
        if not path.exists():
            continue
        for seed, part in pl.read_parquet(path).filter(pl.col("step") == 0).group_by("seed"):
            # Questions given, a mean over m responses of each has variance Σ p (1 − p) / m over their number squared.
            own = (rate * (1 - rate)).sum() / part["samples"][0] / len(rate) ** 2
            error = (own + fresh["fresh_standard_error"] ** 2) ** 0.5
            assert abs(part["avg_at_4"][0] - fresh["fresh"]) <= 4 * error, seed
            # One evaluation, whatever n.
            assert part["avg_at_4"].n_unique() == 1


def test_both_measures_are_charged_and_no_first_evaluation_twice(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    smoke = yaml.safe_load((folder / "params.yaml").read_text())["smoke"]
    problems = len(pl.read_parquet(folder / "outputs" / "prepared" / "problems.parquet"))
    chosen = [len(pl.read_parquet(folder / "outputs" / "prepared" / "base" / f"{name}.parquet")) for name in SETS]
    measured = pl.read_parquet(folder / "outputs" / "prepared" / "base" / "ledger.parquet")
    difficulty = smoke["difficulty"]
    assert sorted(measured["rollouts"].to_list()) == sorted(
        [problems * difficulty["samples"], *(size * difficulty["fresh_samples"] for size in chosen)]
    )
    sweep = pl.read_parquet(folder / "outputs" / "sweep" / "easy" / "ledger.parquet")
    first = sweep.filter((pl.col("step") == 0) & (pl.col("cohort") == "eval"))
    # Of four cells and the pilots: one for each of two seeds, and one for the pilots'.
    questions = difficulty["sets"]["easy"]["validation"] * smoke["evaluation"]["samples"]
    assert first["rollouts"].to_list() == [questions] * 3


def test_a_bad_setting_leaves_earlier_results_untouched(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished
    monkeypatch.chdir(folder)
    good, before = (folder / "params.yaml").read_text(), modified(folder, "outputs/**/*")
    changed = yaml.safe_load(good)
    changed["smoke"]["sweep"]["easy"]["rolluots"] = 5
    (folder / "params.yaml").write_text(yaml.safe_dump(changed))
    assert main(["repro"]) == 2
    (folder / "params.yaml").write_text(good)
    assert "rolluots" in capsys.readouterr().err
    assert modified(folder, "outputs/**/*") == before


SAID = (
    "packages/budget/src/isocompute/budget/ledger/meter.py",
    "packages/rollout/src/isocompute/rollout/scoring/scorer.py",
    "packages/learner/src/isocompute/learner/objective/loss.py",
    "packages/frontier/src/isocompute/frontier/posterior/posterior.py",
    "contract/tables.py",
    "experiments/running/worker.py",
)


def test_after_edits_of_comments_and_docstrings_nothing_runs_and_dvc_shows_the_answers_without_the_net(
    finished: tuple[Path, str],
) -> None:
    folder, _ = finished
    before = (folder / "dvc.lock").read_text()
    for name in SAID:
        edit(folder / name, '"""', '"""Said otherwise: ')
        (folder / name).write_text((folder / name).read_text() + "\n# Said at the end.\n")
    assert re.findall("Running stage '(.*)'", dvc(folder, "repro")) == ["inputs"]
    assert (folder / "dvc.lock").read_text() == before
    # Three of the first set besides those of the base model, and two of one that is not tested.
    assert len(yaml.safe_load(before)["stages"]) == 3 + 2 * len(SETS)
    shown = json.loads(dvc(folder, "metrics", "show", "--json"))[""]["data"]
    assert set(shown) == {f"outputs/metrics/{name}.json" for name in SETS}
    found = shown["outputs/metrics/easy.json"]["data"]
    assert found["rollouts_per_problem"] in (2, 4)
    assert 0 < found["probability_best"] <= 1
    # Of one base model nothing is said alone, and DVC shows no empty mapping.
    assert "alone" not in found
    assert "outputs/plots/easy.png" in json.loads(dvc(folder, "plots", "show", "--json"))["data"]


def test_a_setting_and_a_constant_of_the_fit_retrain_nothing(finished: tuple[Path, str]) -> None:
    folder, _ = finished

    def waiting() -> set[str]:
        return set(re.findall(r"^(\S+):$", dvc(folder, "status"), re.MULTILINE))

    good = (folder / "params.yaml").read_text()
    changed = yaml.safe_load(good)
    changed["smoke"]["frontier"]["seed"] += 1
    (folder / "params.yaml").write_text(yaml.safe_dump(changed))
    assert waiting() == {"inputs", *(f"frontier@{name}" for name in SETS)}
    (folder / "params.yaml").write_text(good)
    edit(folder / "packages/frontier/src/isocompute/frontier/posterior/posterior.py", "KEPT = 16, ", "KEPT = 15, ")
    said = dvc(folder, "repro", "inputs")
    other = r"^inputs: (\w+) has other code of isocompute.frontier.posterior.posterior$"
    assert re.findall(other, said, re.MULTILINE) == ["frontier", "prescribe"]
    assert waiting() == {"inputs", *(f"frontier@{name}" for name in SETS), "prescribe@easy"}
