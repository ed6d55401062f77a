"""The commands that the README and the questions show, and what they print."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from isocompute.budget.cli import main as budget
from isocompute.frontier.cli import main as frontier

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, Callable[[list[str]], int]] = {"isocompute-budget": budget, "isocompute-frontier": frontier}
ENDS = re.compile(r"^\$ ", re.MULTILINE)


def examples(document: Path) -> list[tuple[str, str]]:
    """Every command of a document's console blocks, and the text below it."""
    blocks = re.findall(r"^```console\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [(one.partition("\n")[0], one.partition("\n")[2]) for block in blocks for one in ENDS.split(block) if one]


CHOSEN = re.compile(r"n = (\d+), B_p = (\d+)\b.* (\d\.\d+) \(95 %: .*P\(best\) [<>]?(\d+) %")
NEAR = re.compile(r"^ +(.*) (?:is|are) within 0\.005 of that \(P\(best\) (.*?)\)")
CUT = "…\n"
"""Ends what is shown of a longer answer."""


def best(answer: str) -> tuple[dict[tuple[int, int], int], float]:
    """The settings that are as good as the chosen one, which is the first, with P(best) in percent, and its reward."""
    lines = answer.splitlines()
    n, batch, reward, share = CHOSEN.findall(lines[1])[0]
    near = {(int(n), int(batch)): int(share)}
    for names, shares in NEAR.findall(lines[2].partition("  At ")[0]):
        for name, other in zip(re.split(", | and ", names), re.findall(r"(\d+) %", shares), strict=True):
            its_n, _, its_batch = name.partition(" × ")
            near[int(its_n), int(its_batch or batch)] = int(other)
    return near, float(reward)


def alike(said: str, shown: str) -> bool:
    """Whether two answers agree but for what another processor's rounding does to draws of a posterior.

    What is chosen is one of the settings that are shown to be as good, with P(best) to within 10 points and a reward to
    within 0.01.
    """
    parts = ("n*: ",) if shown.endswith(CUT) else ("n*: ", "Risk: ", "Not in this: ")
    whole = all(f"\n{part}" in text for part in parts for text in (said, shown))
    if not whole or said.splitlines()[0] != shown.splitlines()[0]:
        return False
    (near, reward), (known, shown_reward) = best(said), best(shown)
    chosen = next(iter(near))
    return chosen in known and abs(near[chosen] - known[chosen]) <= 10 and abs(reward - shown_reward) <= 0.01


def answer(n: int, reward: str, share: int, near: str = "") -> str:
    """An answer at a budget, as far as it is compared."""
    use = f"At 1M rollouts use n = {n}, B_p = 32, 244 steps     avg_at_4 {reward} (95 %: 0.58–0.63)   P(best) {share} %"
    losses = f"  {near}32 gets 0.010 less.  At 250k: n* = 32, P(best) 40 %; 8 is within 0.005 of that (P(best) 54 %)."
    return f"7 values of n\n{use}\n{losses}\nn*: 8 at every budget\n{CUT}"


@pytest.mark.parametrize(
    ("n", "reward", "share", "agrees"),
    [
        (128, "0.606", 44, True),
        (128, "0.612", 36, True),
        (64, "0.604", 48, True),
        (16, "0.602", 12, True),
        (64, "0.906", 3, False),
        (64, "0.606", 3, False),
        (128, "0.624", 44, False),
        (128, "0.606", 55, False),
        (32, "0.606", 40, False),
        (256, "0.606", 44, False),
    ],
)
def test_an_answer_is_alike_where_its_n_reward_and_probability_are(
    n: int, reward: str, share: int, agrees: bool
) -> None:
    shown = answer(128, "0.61", 44, "16 and 64 are within 0.005 of that (P(best) 9 %, 40 %); ")
    assert alike(answer(n, reward, share), shown) == agrees


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("README.md", 1), ("docs/logs.md", 6), ("docs/faq.md", 10)])
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
        drawn = program == "isocompute-frontier" and arguments[0] in ("fit", "prescribe")
        same = said.startswith(expected.removesuffix(CUT)) if expected.endswith(CUT) else said == expected
        assert same or (drawn and alike(said, expected)), command
