"""The page of findings: what the committed tables say, every claim once, and verdicts by the rules of the plan."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.studies.panel import claims, findings, forests, questions, runs, study, whole
from experiments.studies.panel.advice import PROTOCOLS, RIVALS
from experiments.studies.panel.statistics import Verdict

pytestmark = pytest.mark.slow("many fits")

COMMITTED = json.loads(findings.NUMBERS.read_text())
PAGE = (findings.DOCS / "findings.md").read_text()
IDS = [*range(1, 31), *(f"N{k}" for k in range(1, 9))]


def made(shift: float, units: list[str]) -> dict[str, Any]:
    """Numbers of units whose n* rises by about so many octaves, and in which nothing else happens."""
    found = {}
    for k, name in enumerate(units):
        own = shift + 0.05 * (-1) ** k
        asked = ["Q5", "Q7", "Q8", "Q9", "Q10", "Q14", "Q15"]
        asked += ["Q6"] * (name in study.STUDY["equal_batches"]["units"]) + ["Q11"] * name.startswith("needle")
        found[name] = {
            "questions": {each: [own, own - 1, own + 1] for each in ("Q1", "Q2", "Q3")}
            | {each: [0.001 * (-1) ** (k + k // 4), -0.1, 0.1] for each in asked},
            "vertices": {each: [[2.0, 1.8, 2.2], *[[2 + own, 1.8 + own, 2.2 + own]] * 2] for each in PROTOCOLS},
            "failures": [{"n": 2, "factor": 1.0, "runs": 1, "below the base": 0, "collapsed": 0}],
            "regret": dict.fromkeys(RIVALS, 0.01),
            "crossings": [],
            "probe": {"guess": [8.0, 2.0, 32.0], "signal": {"2": 0.1}},
            "spread": 1.05,
            "power law": [0.3, 0.1, 0.5],
        }
    return found


def every_unit() -> list[str]:
    return [unit.name for unit in study.UNITS]


def test_the_committed_page_and_figures_are_made_of_the_committed_numbers(tmp_path: Path) -> None:
    assert findings.page(COMMITTED) == PAGE
    forests.draw_protocols(COMMITTED["units"], tmp_path / "findings")
    found = forests.draw(COMMITTED["units"], questions.answers(COMMITTED["units"]), tmp_path)
    for path in (tmp_path / "findings.svg", *found):
        assert path.read_bytes() == (findings.DOCS / path.name).read_bytes(), path.name


def test_the_readme_says_what_the_findings_say() -> None:
    text = " ".join((findings.ROOT / "README.md").read_text().split())
    found = questions.answers(COMMITTED["units"])
    said = [f"it moves by {claims.effect(found[name])}: {found[name].adjusted}." for name in ("Q1", "Q2", "Q3")]
    assert [text.index(each) for each in said] == sorted(text.index(each) for each in said)


def test_the_numbers_are_of_every_unit() -> None:
    assert list(COMMITTED["units"]) == every_unit()


def test_the_numbers_of_a_unit_and_of_the_papers_points_are_measured_again_as_they_are() -> None:
    """To a quarter of an interval: another processor rounds otherwise, and draws otherwise for it."""
    first = study.UNITS[0]
    committed, again = COMMITTED["units"][first.name], runs.measure(whole.read(first))
    assert again["questions"].keys() == committed["questions"].keys()
    for name, (value, low, high) in committed["questions"].items():
        apart = np.abs(np.subtract(again["questions"][name], [value, low, high])).max()
        assert apart <= 0.25 * (high - low) + 1e-4, name
    assert json.loads(json.dumps(findings.rounded(again["failures"]))) == committed["failures"]
    assert runs.paper().keys() == COMMITTED["paper"].keys()


def test_every_claim_has_one_row() -> None:
    assert [claim.id for claim in claims.load()] == IDS
    rows = PAGE.split("## Every claim")[1].split("\n## ")[0]
    assert re.findall(r"^\| (N?\d+) \|", rows, flags=re.MULTILINE) == [str(each) for each in IDS]


@pytest.mark.parametrize("claim", [claim for claim in claims.load() if claim.quotes], ids=lambda claim: str(claim.id))
def test_what_is_known_outside_the_panel_stands_on_the_page_that_is_named(claim: claims.Claim) -> None:
    text = " ".join((findings.DOCS / claim.page).read_text().split())
    for quote in claim.quotes:
        assert quote in text


def test_a_claim_without_question_or_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="has questions or the reason why none answers it"):
        claims.Claim(id=1, says="x", where="y")
    with pytest.raises(ValueError, match="names Q13; the questions are Q1"):
        claims.Claim(id=1, says="x", where="y", questions=["Q13"])


def test_the_page_says_what_is_decided() -> None:
    numbers = made(2.0, every_unit())
    found = questions.answers(numbers)
    assert found["Q1"].plain is found["Q1"].adjusted is Verdict.SUPPORTED
    assert found["Q14"].plain is Verdict.CONTRADICTED
    assert found["Q6"].plain is Verdict.SUPPORTED
    assert found["Q4"].numbers.keys() == {("easy", base) for base in range(3)}
    assert found["Q11"].numbers.keys() == {("needle", base) for base in range(3)}
    text = findings.page({"units": numbers, "paper": COMMITTED["paper"]})
    assert "Supported: Q1, Q2, Q3, Q6. Contradicted: " in text
    assert re.search(r"^\| Q1 \| .* over 12 units\) \| supported \| supported \|$", text, flags=re.MULTILINE)


def test_a_verdict_that_holms_adjustment_takes_back_is_undecided() -> None:
    numbers = made(2.0, every_unit())
    rng = np.random.default_rng(0)
    for own in numbers.values():
        own["questions"]["Q1"] = [rng.normal(0.8, 0.5), 0, 1]
    found = questions.answers(numbers)["Q1"]
    assert 0.025 / 14 < found.p < 0.025
    assert found.plain is Verdict.SUPPORTED
    assert found.adjusted is Verdict.UNDECIDED
