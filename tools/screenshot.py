"""Take a screenshot of a sweep in the MLflow UI with headless Chromium, while ``nox -s ui`` serves it."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from experiments.running.tracker import charts
from experiments.settings import load

DRAW_MILLISECONDS = 90_000
NO_ASSISTANT = """
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
"""
"""MLflow opens its assistant's panel over a fourth of the page when a browser comes for the first time."""


def picture(page_address: str, metric: str, out: Path) -> None:
    """Open an experiment's chart page, wait until the metric's chart is drawn, and save what is seen."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("error: no Chromium was found: install the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 2000, "height": 1100})
        page.add_init_script(NO_ASSISTANT)
        page.goto(page_address, timeout=DRAW_MILLISECONDS)
        page.get_by_text(metric, exact=True).first.wait_for(timeout=DRAW_MILLISECONDS)
        page.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for(timeout=DRAW_MILLISECONDS)
        page.wait_for_timeout(2000)
        page.screenshot(path=str(out))
        browser.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Save the picture of the first problem set's sweep."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshot", description=__doc__)
    parser.add_argument("--address", default="http://localhost:5000")
    parser.add_argument("--out", type=Path, default=Path("docs/mlflow-charts.png"))
    arguments = parser.parse_args(argv)
    os.environ["MLFLOW_TRACKING_URI"] = arguments.address
    preset = load()
    page = charts(preset, next(iter(preset.sweep)))
    if not page:
        raise SystemExit(f"error: {arguments.address} has no sweep of the preset {preset.name}: run it first")
    picture(f"{arguments.address}/{page}", f"eval/{preset.evaluation.metric}", arguments.out)
    print(f"saved {arguments.out}")


if __name__ == "__main__":
    main()
