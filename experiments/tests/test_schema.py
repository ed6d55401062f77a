"""The JSON schema of params.yaml: current, accepting what is accepted, and with a description of every setting."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from experiments.__main__ import main
from experiments.settings import reading

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return reading.document_schema()


@pytest.fixture(scope="module")
def params() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text())
    return read


def test_the_schema_of_the_checkout_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    written = (ROOT / "params.schema.json").read_text()
    assert written == capsys.readouterr().out, "run `python -m experiments schema > params.schema.json`"


def test_editors_find_the_schema_from_the_settings() -> None:
    first = (ROOT / "params.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=params.schema.json"


def test_the_settings_of_the_checkout_are_valid(document: dict[str, Any], params: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(document)
    jsonschema.validate(params, document, cls=jsonschema.Draft202012Validator)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("resources", {"worker": 2}),
        ("resources", {"workers": 0}),
        ("resources", {"sampler": "hf"}),
        ("base", {"kind": "huge"}),
        ("base", {"model": "m"}),
        ("sweep", {"easy; touch X #": None}),
        ("problems", [{"kind": "file"}]),
        ("sampling", {"temperature": "1e-4"}),
        ("frontier", None),
        ("frontier", {"form": "hill"}),
        ("prescribe", {"easy": {"rollouts": 128, "baselines": [4, 4], "seeds": [7, 8], "evaluate_every": 32}}),
        ("prescribe", {"easy": {"rollouts": 128, "baselines": [4], "seeds": [7, 7], "evaluate_every": 32}}),
    ],
)
def test_what_reading_refuses_is_marked_in_an_editor(
    section: str, value: object, document: dict[str, Any], params: dict[str, Any]
) -> None:
    wrong = copy.deepcopy(params)
    wrong["smoke"][section] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, document, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("rate", "valid"),
    [
        ({"rule": "sqrt", "learning_rate": 1e-6}, True),
        ({"rule": "constant", "learning_rate": 1e-6, "batch_rollouts": 8}, True),
        ({"rule": "tuned", "learning_rate": 1e-6}, False),
        ({"rule": "sqrt", "learning_rate": 1e-6, "learning_rates": [1e-6]}, False),
        ({"rule": "sqrt", "learning_rate": 1e-6, "seeds": [900]}, False),
    ],
)
def test_a_declared_rate_is_told_from_a_search_in_an_editor(
    rate: dict[str, Any], valid: bool, document: dict[str, Any], params: dict[str, Any]
) -> None:
    changed = copy.deepcopy(params)
    changed["smoke"]["sweep"]["easy"]["learning_rate"] = rate
    assert jsonschema.Draft202012Validator(document).is_valid(changed) == valid


def settings_of(part: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every setting in a schema that is not described elsewhere in it, with where it is."""
    if isinstance(part, dict):
        for name, setting in part.get("properties", {}).items():
            if "$ref" not in setting:
                yield f"{path}.{name}", setting
        for key, value in part.items():
            yield from settings_of(value, f"{path}.{key}")
    elif isinstance(part, list):
        for index, value in enumerate(part):
            yield from settings_of(value, f"{path}[{index}]")


def test_every_setting_has_a_description(document: dict[str, Any]) -> None:
    found = dict(settings_of(document))
    assert len(found) > 80
    assert [path for path, setting in found.items() if not setting.get("description")] == []
