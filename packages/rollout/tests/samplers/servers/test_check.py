"""What a server can do: a real one, and the same behind a proxy that takes abilities away."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from isocompute.rollout.cli import main
from isocompute.rollout.samplers.servers.check import check, usable
from serving import KEY, between, free_port

# Not imported here: that takes seconds in every process that collects.
pytestmark = [
    pytest.mark.slow("a vLLM server"),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

GOOD = {
    "reachable": "ok", "model": "ok", "chat": "ok", "completions": "ok", "a protocol": "ok", "token ids": "ok",
    "log-probabilities": "ok", "tempered log-probabilities": "ok", "seeds repeat": "ok", "seeds differ": "ok",
    "max_tokens": "ok", "stop texts": "ok", "temperature 0": "ok", "in parallel": "ok", "top_k": "ok",
    "no hidden defaults": "ok", "tokenizer": "ok",
}  # fmt: skip


def test_a_server_of_vllm_can_do_everything(
    server_url: str, chat_tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    asked = ["serve-check", "--base-url", server_url, "--model", str(chat_tiny)]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usable"]
    assert {finding["name"]: finding["verdict"] for finding in found["findings"]} == GOOD
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "usable for difficulty and evaluation"
    assert [line.split("  ")[0] for line in lines[:-1]] == list(GOOD)


def change(asked: dict[str, Any], how: str) -> None:
    """Take abilities away."""
    if how == "one seed, no stop, hidden defaults":
        asked["seed"] = 7
        asked.pop("stop", None)
        for name in ("min_p", "repetition_penalty"):
            asked.pop(name, None)
        asked["top_k"] = 9
    elif how == "no seed, no temperature":
        asked.pop("seed", None)
        asked["temperature"] = 1.0
    elif how == "defaults that are overridden":
        asked.setdefault("top_k", 3)
    elif how == "own limit":
        asked["max_tokens"] = 1


@pytest.mark.parametrize(
    ("how", "lost", "good_enough"),
    [
        (
            "one seed, no stop, hidden defaults",
            {"seeds differ": "no", "stop texts": "no"},
            False,
        ),
        (
            "no seed, no temperature",
            {
                "seeds repeat": "no",
                "in parallel": "no",
                "no hidden defaults": "not known",
                "temperature 0": "no",
                "tempered log-probabilities": "no",
            },
            True,
        ),
        ("defaults that are overridden", {}, True),
        ("own limit", {"completions": "no", "chat": "no", "a protocol": "no"}, False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_server_cannot_do_is_found(
    server_url: str, chat_tiny: Path, how: str, lost: dict[str, str], good_enough: bool
) -> None:
    with between(server_url, change=lambda asked: change(asked, how)) as proxy:
        findings = check(proxy.url, str(chat_tiny), api_key=KEY)
    verdicts = {finding.name: finding.verdict for finding in findings}
    assert {name: verdicts[name] for name in lost} == lost
    others = {name: verdict for name, verdict in verdicts.items() if name not in lost}
    assert [name for name, verdict in others.items() if verdict != "ok"] == []
    assert usable(findings) == good_enough
    if how == "defaults that are overridden":
        assert "override" in next(finding.meaning for finding in findings if finding.name == "no hidden defaults")


def test_a_strict_server_gives_text_only(server_url: str, chat_tiny: Path) -> None:
    def refuse(asked: dict[str, Any]) -> str | None:
        return next((f"refuse {n}" for n in ("return_token_ids", "top_k", "logprobs") if n in asked), None)

    with between(server_url, refuse) as proxy:
        findings = check(proxy.url, str(chat_tiny), api_key=KEY)
    verdicts = {finding.name: finding.verdict for finding in findings}
    assert usable(findings)
    assert (verdicts["token ids"], verdicts["log-probabilities"], verdicts["top_k"]) == ("no", "no", "no")
    assert verdicts["tempered log-probabilities"] == verdicts["no hidden defaults"] == "not known"
    # Without token ids the number of the prompt's tokens is compared.
    assert verdicts["tokenizer"] == "ok"


def test_a_server_that_cannot_be_used_ends_the_command_with_2(
    server_url: str, tiny: Any, chat_tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for url, more, said in (
        (nowhere, [], "does not answer"),
        (server_url, ["--served-model", "other"], "has no model other (it has tiny)"),
    ):
        assert main(["serve-check", "--base-url", url, "--model", str(chat_tiny), *more]) == 2
        output = capsys.readouterr()
        assert said in output.out
        assert output.err.endswith(f"error: the server at {url} cannot be used: see the lines above that say no\n")
    assert main(["serve-check", "--base-url", "nonsense", "--model", str(chat_tiny)]) == 2
    assert "must be like http://localhost:8000/v1" in capsys.readouterr().err
    assert main(["serve-check", "--base-url", server_url, "--model", str(tiny.folder), "--timeout", "0"]) == 2
    assert "--timeout is 0.0" in capsys.readouterr().err
