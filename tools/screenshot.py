"""Takes a screenshot of a sweep in the MLflow UI, with a real server and headless Chromium."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isocompute.budget.contract import tracking

from experiments.errors import ExperimentError
from experiments.settings import load

START_SECONDS = 120
DRAW_MILLISECONDS = 90_000
NO_ASSISTANT = """
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
"""
"""MLflow opens its assistant's panel over a fourth of the page when a browser comes for the first time."""


@contextmanager
def server(store: str) -> Iterator[str]:
    """Serve a store on a free port for as long as this lasts; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--port", str(port), "--workers", "1"],
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        _wait(address, process)
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(START_SECONDS * 5):
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{address}/health", timeout=1)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise ExperimentError("the MLflow server did not start")


def picture(address: str, experiment_id: str, metric: str, out: Path) -> None:
    """Open an experiment's chart page, wait until the metric's chart is drawn, and save what is seen."""
    from playwright.sync_api import Error, sync_playwright

    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        raise ExperimentError("no Chromium was found: install the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 2000, "height": 1100})
        page.add_init_script(NO_ASSISTANT)
        try:
            page.goto(f"{address}/#/experiments/{experiment_id}/runs?compareRunsMode=CHART", timeout=DRAW_MILLISECONDS)
            page.get_by_text(metric, exact=True).first.wait_for(timeout=DRAW_MILLISECONDS)
            page.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for(timeout=DRAW_MILLISECONDS)
        except Error as error:
            raise ExperimentError(f"the chart of {metric} was not drawn ({str(error).splitlines()[0]})") from None
        page.wait_for_timeout(2000)
        page.screenshot(path=str(out))
        browser.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Save the picture; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshot", description=__doc__)
    parser.add_argument("--store", default=f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    parser.add_argument("--experiment", help="by default that of the first problem set")
    parser.add_argument("--metric", help="by default the one that params.yaml names")
    parser.add_argument("--out", type=Path, default=Path("docs/mlflow-charts.png"))
    arguments = parser.parse_args(argv)
    try:
        preset = load()
        experiment = arguments.experiment or f"{preset.name}-{next(iter(preset.sweep))}-sweep"
        tracking.ensure_store(arguments.store)
        from mlflow import MlflowClient

        found = MlflowClient().get_experiment_by_name(experiment)
        if found is None:
            raise ExperimentError(f"{arguments.store} has no experiment {experiment}: run the sweep first")
        with server(arguments.store) as address:
            picture(
                address, str(found.experiment_id), arguments.metric or f"eval/{preset.evaluation.metric}", arguments.out
            )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"saved {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
