"""What command lines say of themselves, complete in a shell, and answer where a name is unknown."""

import argparse
import re
import shlex
import subprocess
import sys
from importlib import import_module

import pytest

from experiments import __main__

from .made import PACKAGES


def parser_of(package: str) -> argparse.ArgumentParser:
    part = import_module(f"isocompute.{package}.contract.command_line")
    commands = import_module(f"isocompute.{package}.cli").COMMANDS
    made = part.parser_of(f"isocompute-{package}", "", commands)
    assert isinstance(made, argparse.ArgumentParser)
    return made


PARSERS = {**{package: parser_of(package) for package in PACKAGES}, "experiments": __main__.parser()}


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (group,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    assert {choice.dest for choice in group._choices_actions if choice.help} == set(group.choices)
    return dict(group.choices)


@pytest.mark.parametrize("name", PARSERS)
def test_every_option_has_words_besides_its_default(name: str) -> None:
    for command in commands_of(PARSERS[name]).values():
        for action in command._actions:
            said = re.sub(r"\(?default.*", "", action.help or "")
            assert re.search("[a-z]{2}", said), f"{command.prog} {action.option_strings or action.dest}"


@pytest.mark.parametrize("name", PARSERS)
def test_every_command_has_an_example_that_it_takes_and_that_no_width_breaks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for command in commands_of(PARSERS[name]).values():
        lines = re.findall(r"^example: .*$", command.format_help(), re.MULTILINE)
        assert lines, command.prog
        assert set(lines) <= set((command.epilog or "").splitlines())
        for line in lines:
            _, *words = shlex.split(line)
            assert " ".join(words).startswith(command.prog)
            assert PARSERS[name].parse_args(words[len(PARSERS[name].prog.split()) :])


def test_an_option_is_not_taken_for_one_that_begins_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = "convert --to verl --rollouts-per-problem 16 --problems-per-batch 64 --update-steps 500 --rollouts 1000"
    with pytest.raises(SystemExit) as ended:
        PARSERS["budget"].parse_args(words.split())
    assert ended.value.code == 2
    assert "unrecognized arguments: --rollouts: did you mean --rollouts-per-problem" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant", "where"),
    [
        (["plna"], "plan", "isocompute-budget"),
        (["plan", "--rollouts", "1k", "--prcie", "2"], "--price", "isocompute-budget plan"),
        (["plan", "--rollouts", "1k", "--scaling", "sqr"], "sqrt", "isocompute-budget plan"),
        (["swep", "hard"], "sweep", "python -m experiments"),
        # Also where a required option is missing, for which it may have been meant.
        (["prescribe", "fitted", "--budgte", "1M"], "--budget", "isocompute-frontier prescribe"),
        (["advise", "--budget", "1M", "--problms", "800"], "--problems", "isocompute-frontier advise"),
    ],
)
def test_what_may_have_been_meant_is_named(
    words: list[str], meant: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a command, an option and a choice, in one line."""
    (parser,) = (parser for parser in PARSERS.values() if where.startswith(parser.prog))
    with pytest.raises(SystemExit) as end:
        parser.parse_args(words)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.endswith(f": did you mean {meant}? (see {where} --help)\n")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("text", ["-2M", "-2,000,000", "-.5", "-1e6"])
def test_a_negative_amount_is_a_value_that_is_refused_and_no_option(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        PARSERS["frontier"].parse_args(["prescribe", "fitted", "--budget", text])
    assert f"--budget: {text!r} " in capsys.readouterr().err


def test_a_shell_without_shtab_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as end:
        PARSERS["budget"].parse_args(["--print-completion", "bash"])
    assert end.value.code == 2
    assert "python3 -m pip install shtab" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("plan --response-tokens 1.5k", "response_tokens", 1_500.0),
        ("plan --price 2.5", "price", 2.5),
    ],
)
def test_experiments_read_amounts_as_the_packages_do(words: str, name: str, value: float) -> None:
    assert getattr(PARSERS["experiments"].parse_args(words.split()), name) == value


@pytest.mark.slow("starts bash")
def test_bash_completes_commands_options_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        PARSERS["budget"].parse_args(["--print-completion", "bash"])
    assert not end.value.code
    script = capsys.readouterr().out
    (function,) = re.findall(r"^complete .* -F (\w+) ", script, re.MULTILINE)
    for words, found in (("aud", "audit"), ("plan --curr", "--currency"), ("audit --ledger /et", "/etc")):
        line = ["isocompute-budget", *words.split()]
        asked = f"COMP_WORDS=({' '.join(line)}); COMP_CWORD={len(line) - 1}; {function}; echo ${{COMPREPLY[@]}}"
        ran = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
        assert found in ran.stdout.split(), ran.stderr
