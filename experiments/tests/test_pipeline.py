"""The whole loop on the preset ``smoke``: real vLLM, Ray, MLflow and DVC, as a newcomer runs it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SETS = ("easy", "hard")


def clone(folder: Path, resources: Mapping[str, object]) -> Path:
    """Copy what the stages read, with ``smoke`` as the preset."""
    hidden = shutil.ignore_patterns("__pycache__", "tests")
    for package in ("budget", "rollout", "learner", "frontier"):
        shutil.copytree(ROOT / "packages" / package / "src", folder / "packages" / package / "src", ignore=hidden)
    shutil.copytree(ROOT / "experiments", folder / "experiments", ignore=hidden)
    (folder / ".dvc").mkdir()
    for name in ("dvc.yaml", ".dvcignore", ".dvc/config"):
        shutil.copy(ROOT / name, folder / name)
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["preset"] = "smoke"
    params["smoke"]["resources"].update(resources)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    dvc(folder, "config", "--local", "core.no_scm", "true")
    return folder


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"}


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def dvc(folder: Path, *arguments: str) -> str:
    return run(folder, "-m", "dvc", *arguments)


def modified(folder: Path, pattern: str) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in sorted(folder.glob(pattern))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A tree where everything ran, and what was printed."""
    folder = clone(tmp_path_factory.mktemp("first"), {})
    return folder, run(folder, "-m", "experiments", "repro")


def test_it_prints_what_was_found(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    end = printed[printed.index("easy: base model") :]
    for expected in ("avg@8", "n*", "prescribed for", "against fixed n", "outputs/report/report.html", "nox -s ui"):
        assert expected in end
    page = (folder / "outputs" / "report" / "report.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "")


def test_again_nothing_runs_and_the_status_is_clean(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    before = (folder / "dvc.lock").read_text()
    assert "Data and pipelines are up to date" in dvc(folder, "repro")
    assert "Data and pipelines are up to date" in dvc(folder, "status")
    assert (folder / "dvc.lock").read_text() == before
    assert len(yaml.safe_load(before)["stages"]) == 10


def test_killed_continued_in_another_order_on_one_worker_the_lock_is_the_same(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    folder = clone(tmp_path / "second", {"workers": 1, "reverse": True})
    command = [sys.executable, "-m", "experiments", "repro"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), start_new_session=True, stdout=subprocess.DEVNULL
    )
    # Killed when some cells are done and one is under way.
    while len(modified(folder, "work/cells/*/done.json")) < 4:
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = modified(folder, "work/cells/*/done.json")
    run(folder, "-m", "experiments", "repro")
    after = modified(folder, "work/cells/*/done.json")
    assert done.items() <= after.items()
    assert len(after) > len(done)
    assert (folder / "dvc.lock").read_text() == (finished[0] / "dvc.lock").read_text()


def test_the_frontier_is_fitted_elsewhere_from_mlflow_alone(finished: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = finished
    preset = yaml.safe_load((folder / "params.yaml").read_text())["smoke"]["frontier"]
    subprocess.run(
        [sys.executable, "-m", "isocompute.frontier.cli", "fit", "mlflow:smoke-easy-sweep", "--out", "fitted",
         "--bootstrap", str(preset["bootstrap"]), "--form", preset["form"], "--seed", str(preset["seed"])],
        cwd=tmp_path, env={**environment(), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}, check=True,
    )  # fmt: skip
    ours = (folder / "outputs" / "frontier" / "easy" / "fits.json").read_bytes()
    assert (tmp_path / "fitted" / "fits.json").read_bytes() == ours


def test_outputs_travel_through_a_remote(finished: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = finished
    dvc(folder, "remote", "add", "--local", "-d", "store", str(tmp_path / "remote"))
    dvc(folder, "push")
    other = clone(tmp_path / "other", {})
    shutil.copy(folder / "dvc.lock", other / "dvc.lock")
    dvc(other, "remote", "add", "--local", "-d", "store", str(tmp_path / "remote"))
    dvc(other, "pull")
    for name in ("report/report.html", "sweep/easy/evals.parquet", "frontier/hard/fits.json"):
        assert (other / "outputs" / name).read_bytes() == (folder / "outputs" / name).read_bytes()


def test_a_fit_setting_retrains_nothing(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["smoke"]["frontier"]["bootstrap"] += 10
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    trained = modified(folder, "work/cells/*/*") | modified(folder, "outputs/sweep/**/*")
    fitted = modified(folder, "outputs/frontier/easy/fits.json")
    dvc(folder, "repro", "frontier@easy")
    assert modified(folder, "work/cells/*/*") | modified(folder, "outputs/sweep/**/*") == trained
    assert modified(folder, "outputs/frontier/easy/fits.json") != fitted


def test_a_bad_setting_leaves_earlier_results_untouched(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    good = (folder / "params.yaml").read_text()
    params = yaml.safe_load(good)
    params["smoke"]["sweep"]["easy"]["rolluots"] = 5
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    before = modified(folder, "outputs/**/*")
    failed = subprocess.run(
        [sys.executable, "-m", "experiments", "repro"], cwd=folder, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (folder / "params.yaml").write_text(good)
    assert failed.returncode == 2
    assert "rolluots" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert modified(folder, "outputs/**/*") == before
