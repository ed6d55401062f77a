"""The notebook in docs/ and what a notebook shows of a sweep and its fit."""

import json
from pathlib import Path
from typing import Any

import pytest
from isocompute.frontier import Frontier, FrontierError

pytestmark = pytest.mark.slow("every cell of the notebook")

DOCS = Path(__file__).parents[1] / "docs"


def test_the_notebook_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS)
    cells = json.loads((DOCS / "frontier.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "frontier.ipynb", "exec"), names)
    fit = names["fit"]
    # Small n at little compute, large n at much: section 4.1 of the Playbook.
    chosen = [fit.best(budget).cell.rollouts_per_problem for budget in (2e5, 1e6, 4e6)]
    assert chosen[0] <= 32 < chosen[1] <= 256 <= chosen[2]
    assert "one seed" in fit.answer().lines()[-1]
    assert len(repr(fit)) < 120
    assert fit._repr_html_().count("<p>") >= 5


def test_a_fit_that_was_never_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(FrontierError, match=r"no posterior\.json"):
        Frontier.load(tmp_path)
