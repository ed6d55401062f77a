"""The id of a run: what it depends on, and what it does not."""

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import Sampling, Scorer, ScoringConfig
from isocompute.rollout.commands import identity
from isocompute.rollout.commands.settings import RunSettings
from isocompute.rollout.samplers.local import Prompting

PROBLEMS = pl.DataFrame(
    {name: ["a", "b"] for name in ("problem_id", "prompt", "answer", "source", "split")}
).with_columns(verifier=pl.lit("exact"))
ASKED = RunSettings(model="m", kind="vllm", sampling=Sampling(), prompting=Prompting(), samples=4, seed=0)


def of(
    asked: RunSettings = ASKED, problems: pl.DataFrame = PROBLEMS, phase: str = "eval", prompts: str = "of today"
) -> str:
    return identity.run_id(identity.described(asked, problems, phase=phase, prompts=prompts))


@pytest.fixture(autouse=True)
def without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"kind": "transformers"},
        {"samples": 5},
        {"seed": 1},
        {"sampling": Sampling(top_p=0.5)},
        {"prompting": Prompting(system="s")},
        {"prompting": Prompting(date="2025-01-01")},
        {"engine": {"dtype": "bfloat16"}},
        {"scorer": Scorer(ScoringConfig(partial=True))},
        {"scorer": Scorer(ScoringConfig(seconds=2))},
    ],
)
def test_what_changes_the_rows_changes_the_id(other: dict[str, Any]) -> None:
    assert of(replace(ASKED, **other)) != of()


def test_the_problems_and_the_phase_are_part_of_it_and_their_order_and_difficulty_are_not() -> None:
    assert of(problems=PROBLEMS.with_columns(answer=pl.lit("c"))) != of()
    assert of(phase="baseline") != of()
    assert of(prompts="of tomorrow") != of()
    assert of(problems=PROBLEMS.reverse().with_columns(pass_rate=pl.lit(0.5))) == of()


def test_what_changes_the_speed_only_does_not_change_the_id() -> None:
    assert of(replace(ASKED, engine={"max_concurrent": 8, "memory_share": 0.5})) == of()
    assert of(replace(ASKED, scorer=Scorer(ScoringConfig(workers=4, seconds=5.0)))) == of()
    served = replace(ASKED, kind="openai", server={"base_url": ["http://a/v1"], "concurrency": 8})
    assert of(served) == of(replace(served, server={"base_url": ["http://b/v1", "http://c/v1"], "timeout": 9.0}))
    assert of(served) != of(replace(served, server={**served.server, "protocol": "chat"}))


def test_the_code_of_a_users_verifier_is_part_of_it_and_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "my_package_of_rules"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    for name in ("my_rules", "my_package_of_rules.inner"):
        file = tmp_path / f"{name.replace('.', '/')}.py"
        problems = PROBLEMS.with_columns(verifier=pl.lit(f"python:{name}:judge|last_line"))
        seen = set()
        for code in ("return False", "return True"):
            file.write_text(f"raise SystemExit('imported')\ndef judge(*given): {code}\n")
            seen.add(of(problems=problems))
        assert len(seen) == 2
        file.write_text(f"# Said otherwise.\n{file.read_text()}")
        assert of(problems=problems) in seen


def test_the_version_of_a_library_is_part_of_it_where_a_rule_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify")
    mathematical = PROBLEMS.with_columns(verifier=pl.lit("math"))
    before = of(), of(problems=mathematical)
    monkeypatch.setattr(identity, "version", lambda name: "9" if name == "math-verify" else metadata.version(name))
    assert of() == before[0]
    assert of(problems=mathematical) != before[1]
    monkeypatch.setattr(identity, "version", lambda name: "9")
    assert of() != before[0]


def test_every_byte_of_a_small_file_and_blocks_of_a_large_one_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents(*written: bytes) -> set[str]:
        found = set()
        for content in written:
            (tmp_path / "model.safetensors").write_bytes(content)
            found.add(identity.content_of(str(tmp_path)))
        return found

    assert len(contents(b"0000", b"0001", b"1000", b"00000")) == 4
    for name, value in (("WHOLE", 1000), ("BLOCK", 10), ("BLOCKS", 11)):
        monkeypatch.setattr(identity, name, value)
    changed = [bytes(i == place for i in range(2000)) for place in (-1, 0, 9, 1999, 1990)]
    # A checkpoint of the next step differs everywhere.
    assert len(contents(*changed, bytes([2]) * 2000)) == 6
    before = contents(b"0")
    (tmp_path / "config.json").write_text("{}")
    assert contents(b"0") != before
