"""The commands, examples and tables of the documents are true."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from isocompute.budget.cli import main as budget
from isocompute.frontier import Fit, Frontier
from isocompute.frontier.cli import main as frontier
from isocompute.frontier.posterior import posterior
from isocompute.learner import (
    EntropyConfig,
    EvaluationRecord,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    ResponseStatistics,
    StepRecord,
    UpdateReport,
)
from isocompute.learner.config import RECIPES
from isocompute.learner.objective.loss import loss_metrics
from isocompute.learner.records.steps import AdvantageStatistics, LagStatistics, Mean
from isocompute.rollout import evaluate

from .made import ROOT

PROGRAMS: dict[str, Callable[[list[str]], int]] = {"isocompute-budget": budget, "isocompute-frontier": frontier}
ENDS = re.compile(r"^\$ ", re.MULTILINE)


def examples(document: Path) -> list[tuple[str, str]]:
    """Every command of a document's console blocks, and the text below it."""
    blocks = re.findall(r"^```console\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [(one.partition("\n")[0], one.partition("\n")[2]) for block in blocks for one in ENDS.split(block) if one]


@pytest.fixture(autouse=True, scope="module")
def fitted_once() -> Iterator[None]:
    """Let commands that fit the same table share the fit, which takes seconds."""
    fit, kept = Frontier.fit, {}

    def once(self: Frontier, **asked: Any) -> Fit:
        own = {name: value for name, value in vars(self).items() if name != "evals"}
        key = repr((self.evals.hash_rows().to_list(), own, asked, posterior.AGREED))
        kept[key] = kept.get(key) or fit(self, **asked)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Frontier, "fit", once)
        yield


CHOSEN = re.compile(r"n = (\d+), B_p = (\d+)\b.* (\d\.\d+) \(95 %: .*P\(best\) [<>]?(\d+) %")
NEAR = re.compile(r"^ +(.*) (?:is|are) within 0\.005 of that")
CUT = "…\n"
"""Ends what is shown of a longer answer."""


def best(answer: str) -> tuple[list[tuple[int, int]], int, float]:
    """The settings that are as good as the chosen one, which is the first; its P(best) in percent, and its reward."""
    lines = answer.splitlines()
    n, batch, reward, share = CHOSEN.findall(lines[1])[0]
    near = [(int(n), int(batch))]
    for names in NEAR.findall(lines[2].partition("  At ")[0]):
        found = re.findall(r"n = (\d+), B_p = (\d+)", names) or [
            (its_n, batch) for its_n in re.split(", | and ", names)
        ]
        near += [(int(its_n), int(its_batch)) for its_n, its_batch in found]
    return near, int(share), float(reward)


def alike(said: str, shown: str) -> bool:
    """Whether two answers agree but for what another processor's rounding does to draws of a posterior.

    What is chosen is one of the settings that are shown to be as good, with a reward to within 0.01; P(best) of the one
    that is shown is as shown to within 10 points. Of a forecast the words agree, and the reward is to within 0.02.
    """
    if shown.startswith("posterior, "):
        at = [float(re.search(r"^  at \S+ +(\S+)", text, re.MULTILINE)[1]) for text in (said, shown)]  # type: ignore[index]
        words = [re.sub(r"[-+\d.,%()]+ *", "", text) for text in (said, shown)]
        return words[0] == words[1] and abs(at[0] - at[1]) <= 0.02
    parts = ("n*: ",) if shown.endswith(CUT) else ("n*: ", "Risk: ", "Not in this: ")
    whole = all(f"\n{part}" in text for part in parts for text in (said, shown))
    if not whole or said.splitlines()[0] != shown.splitlines()[0]:
        return False
    (near, share, reward), (known, shown_share, shown_reward) = best(said), best(shown)
    sure = near[0] != known[0] or abs(share - shown_share) <= 10
    return near[0] in known and sure and abs(reward - shown_reward) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"), [("README.md", 2), ("docs/logs.md", 6), ("docs/faq.md", 10), ("docs/decide.md", 1)]
)
def test_every_example_prints_what_it_says(
    name: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = examples(ROOT / name)
    assert len(found) >= least
    (tmp_path / "packages").symlink_to(ROOT / "packages")
    monkeypatch.chdir(tmp_path)
    for command, expected in found:
        program, *arguments = shlex.split(command)
        capsys.readouterr()
        assert PROGRAMS[program](arguments) == 0, command
        said = capsys.readouterr().out
        drawn = program == "isocompute-frontier" and arguments[0] in ("fit", "prescribe", "predict")
        same = said.startswith(expected.removesuffix(CUT)) if expected.endswith(CUT) else said == expected
        assert same or (drawn and alike(said, expected)), command


def manual(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("short_chains")
def test_the_tutorials_of_the_frontier_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages").symlink_to(ROOT / "packages")
    monkeypatch.chdir(tmp_path)
    text = manual("frontier")
    tutorials = text[: text.index("## Runs of other trainers")]
    commands = re.findall(r"^    (isocompute-frontier .*)$", tutorials, re.MULTILINE)
    assert [shlex.split(c)[1] for c in commands] == ["fit", "prescribe", "prescribe", "next", "predict", "fit"]
    for command in commands:
        # A check fits again without each n.
        command = command.replace(" --check", "")
        assert frontier(shlex.split(command)[1:]) == 0, command
    assert (tmp_path / "trl-fitted" / "trade.svg").exists()


@pytest.mark.slow
def test_the_examples_of_the_learner_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", manual("learner"), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "docs/learner.md", "exec"), {})


GLOSSARY = (ROOT / "docs" / "metrics.md").read_text()
# The settings with which everything is measured that can be.
CONFIG = LearnerConfig(
    learning_rate=1.0,
    objective=ObjectiveConfig(algorithm="ppo"),
    kl=KLConfig(coefficient=1.0),
    entropy=EntropyConfig(coefficient=1.0),
)
UPDATE = UpdateReport(
    # Returns that differ, so that there is a variance to be explained.
    objective={name: Mean(total=1.0 + (name == "return_square"), count=1.0) for name in loss_metrics(CONFIG)},
    gradient_norm=0.0,
    learning_rate=0.0,
    trained_tokens=1,
    skipped=Mean(total=0.0, count=1.0),
    operations=1.0,
    machine_rate=1.0,
)
RESPONSES = ResponseStatistics(
    **dict.fromkeys(("reward", "reward_std", "zero_variance_share", "response_length", "truncated_share"), 0.0),
    response_length_max=1,
    sampled_entropy=0.0,
)
STEP = StepRecord(
    **dict.fromkeys(("step", "gradient_retries", "sampled_tokens", "dropped_problems", "rounding_changes"), 1),
    **dict.fromkeys(("sample_seconds", "update_seconds", "sync_seconds"), 1.0),
    rollouts=8,
    responses=RESPONSES,
    advantages=AdvantageStatistics(advantage=0.0, advantage_std=0.0),
    update=UPDATE,
    lag=LagStatistics(
        **dict.fromkeys(("lag_mean", "mixed_share", "stale_length", "virtual_time"), 1.0),
        **dict.fromkeys(("engines_idle_share", "trainer_idle_share"), 0.5),
        lag_max=1,
        stale_groups=1,
    ),
)


class Answered:
    """A sampler whose responses are all right."""

    def sample(self, problems: pl.DataFrame, *, samples: int, **asked: Any) -> pl.DataFrame:
        responses = pl.DataFrame({"sample": range(samples)}).with_columns(reward=1.0, finish_reason=pl.lit("stop"))
        return problems.join(responses, how="cross")


def evaluation(samples: int) -> EvaluationRecord:
    """What the loop makes of an evaluation."""
    found = evaluate(Answered(), pl.DataFrame({"problem_id": ["p"]}), samples=samples, seed=0, at=0, run_id="r")
    return EvaluationRecord(step=0, rollouts=0, scores=found.metrics, evaluate_seconds=0.0)


def names_in(section: str) -> set[str]:
    """The names in the first column of a section's table."""
    text = GLOSSARY.split(f"\n## {section}")[1].split("\n## ")[0]
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in first for name in re.findall(r"`([\w/]+)`", cell)}


def named(values: Mapping[str, float], *, seconds: bool) -> set[str]:
    return {name for name in values if name.endswith("_seconds") == seconds}


def test_every_metric_of_a_run_is_in_the_glossary_and_no_other() -> None:
    for samples in (2, 4):
        found = named(evaluation(samples).metrics(), seconds=False)
        assert {name.replace(f"_at_{samples}", "_at_k") for name in found} == names_in("Evaluation")
    assert named(STEP.metrics(), seconds=False) == names_in("Training")
    assert named(STEP.metrics() | evaluation(4).metrics(), seconds=True) == names_in("Time")
    phases = {name.removeprefix("perf/").removesuffix("_seconds") for name in names_in("Time")}
    assert phases == {*STEP.seconds(), *evaluation(4).seconds()}


PAGES = ROOT / "docs" / "recipes"


def rows(name: str) -> dict[str, Any]:
    """The settings in a page's tables: dotted name and value, as YAML reads it."""
    found = re.findall(r"^\| `(\w+\.\w+)` \| `([^`]+)` \| (\S.*) \|$", (PAGES / f"{name}.md").read_text(), re.MULTILINE)
    assert len({setting for setting, _, _ in found}) == len(found)
    return {setting: yaml.safe_load(value) for setting, value, _ in found}


def leaves(name: str) -> dict[str, Any]:
    return {f"{group}.{key}": value for group, values in RECIPES[name].items() for key, value in values.items()}


def test_every_setting_of_a_recipe_is_on_its_page_with_its_value_and_its_source() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(RECIPES)
    for name in RECIPES:
        shown, settings = rows(name), leaves(name)
        # YAML reads 1e-15, without a point, as text.
        same = {k: float(v) if isinstance(settings[k], float) else v for k, v in shown.items() if k in settings}
        assert same == settings
