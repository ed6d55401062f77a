"""What a response that a rule executes can read, and what of it can leave the sandbox by the words of an error."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.rollout.scoring.judges import CallableJudge
from isocompute.rollout.scoring.sandbox import layers
from isocompute.rollout.scoring.sandbox.child import NO_SCORE, in_a_child
from isocompute.rollout.scoring.sandbox.frames import said
from isocompute.rollout.scoring.sandbox.limits import Limits
from isocompute.rollout.scoring.sandbox.process import ScoringConfig, command, readable
from isocompute.rollout.scoring.scorer import Item, Scorer

SECRET = "a-secret-of-the-working-folder"
RULES = """
import pathlib
import reading_helper
WORDS = (pathlib.Path(__file__).parent / "words.txt").read_text()


def executes(response, answer, metadata):
    scope = {"folder": pathlib.Path(__file__).parent, "words": WORDS}
    exec(response, scope)
    return scope.get("answer") == answer
"""
SEEN = "answer = 'aa' * bool((folder / {name!r}).read_bytes())"
NAMES = ("reading_rules.py", "reading_helper.py", "problems.jsonl", ".env", ".git/config", "given/more.txt")
LIMITS = Limits(seconds=5, wall_seconds=60, contained=False, landlock=0, filter=b"", processes=10**6)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a rule, its neighbours and what nobody should see."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reading_rules.py").write_text(RULES)
    (tmp_path / "reading_helper.py").write_text(f"SECRET = {SECRET!r}")
    (tmp_path / "words.txt").write_text("words that the rule reads when it is imported")
    for name in NAMES[2:]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SECRET)
    (tmp_path / "link").symlink_to("problems.jsonl")
    return tmp_path


@pytest.mark.slow("sandboxes of its own")
@pytest.mark.parametrize("without", [(), ("landlock",)])
def test_a_response_reads_the_file_of_its_rule_and_what_is_listed_and_nothing_beside_it(
    folder: Path, without: tuple[str, ...]
) -> None:
    scorer = Scorer(ScoringConfig(seconds=2, readable=(str(folder / "given"),), without=without))
    tells = [
        "import reading_helper; raise KeyError(reading_helper.SECRET)",
        "(folder / 'link').read_text()",
        "answer = 'aa' * ('.env' in [path.name for path in folder.iterdir()])",
    ]
    responses = [*(SEEN.format(name=name) for name in NAMES), *tells, "answer = 'aa' * bool(words)"]
    items = [Item(verifier="python:reading_rules:executes", response=text, answer="aa") for text in responses]
    verdicts = scorer.submit(items).result(timeout=120)
    report = scorer._pool("exact")._put(lambda process: process.started()).result()
    scorer.close()
    if without and report["files"] != layers.MOUNTS:
        pytest.skip("no mount namespace")
    seen = {name: verdict.reward for name, verdict in zip(NAMES, verdicts, strict=False)}
    assert [name for name, reward in seen.items() if reward] == ["reading_rules.py", "given/more.txt"]
    refused = "error: FileNotFoundError" if without else "error: PermissionError"
    # Its helper was imported with it. What a mount namespace lists is only what is readable.
    told = ["error: KeyError", refused, None if without else refused, None]
    assert [v.error for v in verdicts[len(NAMES) :]] == told
    assert [v.reward for v in verdicts[len(NAMES) :]] == [0] * (len(told) - 1) + [1]


@settings(max_examples=15)
@given(st.lists(st.booleans(), min_size=0, max_size=3))
def test_what_belongs_to_a_module_is_its_package_or_else_its_file(
    tmp_path_factory: pytest.TempPathFactory, packages: list[bool]
) -> None:
    top = tmp_path_factory.mktemp("top")
    folders = [top.joinpath(*(f"part_{i}_of_{top.name}" for i in range(n + 1))) for n in range(len(packages))]
    for folder, package in zip(folders, packages, strict=True):
        folder.mkdir()
        if package:
            (folder / "__init__.py").touch()
    file = (folders[-1] if folders else top) / f"rules_of_{top.name}.py"
    file.write_text("def judge(response, answer, metadata): return True")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(top))
        importlib.invalidate_caches()
        module = ".".join(file.relative_to(top).with_suffix("").parts)
        expected = [folder for folder, package in zip(folders, packages, strict=True) if package]
        assert CallableJudge(f"python:{module}:judge").sources == [str(expected[0] if expected else file)]


def test_an_interpreter_in_the_working_folder_does_not_make_the_folder_readable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("prefix", "base_prefix"):
        monkeypatch.setattr(sys, name, str(folder))
    (folder / "lib").mkdir()
    found = [Path(place) for place in readable([str(folder)], (str(folder / "given"),))]
    assert not [place for place in found if folder.is_relative_to(place)]
    assert {folder / "lib", folder / "given"} <= set(found)


def test_what_is_not_there_is_not_taken_for_what_only_root_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "python311.zip"))
    monkeypatch.chdir(tmp_path)
    settings = json.loads(command("python:some_rules:judge", ScoringConfig(), "")[-1])
    assert str(tmp_path) in settings["importable"]
    assert all(Path(place).exists() for place in [*settings["importable"], *settings["readable"]])
    assert json.loads(command("math", ScoringConfig(), "")[-1])["importable"] == []


@settings(max_examples=25)
@given(
    st.sampled_from(["", "error: ", "error: KeyError: ", "error: KeyError", NO_SCORE, f"{NO_SCORE}str "]),
    st.binary(min_size=6, max_size=40).map(bytes.hex),
    st.text(max_size=9),
)
def test_of_what_a_child_says_of_an_error_only_a_known_type_is_passed_on(start: str, secret: str, end: str) -> None:
    reply = in_a_child(lambda: said({"error": start + secret + end}), LIMITS)
    known = [text for text in ("error: KeyError", f"{NO_SCORE}str") if start in (f"{text}: ", f"{text} ")]
    assert reply == {"error": known[0] if known else "error: Exception"}
