"""The pages of the recipes say what the recipes are."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from isocompute.learner.recipes import RECIPES

PAGES = Path(__file__).parents[2] / "docs" / "recipes"


def rows(name: str) -> dict[str, Any]:
    """The settings in a page's tables: dotted name and value, as YAML reads it."""
    found = re.findall(r"^\| `(\w+\.\w+)` \| `([^`]+)` \| (\S.*) \|$", (PAGES / f"{name}.md").read_text(), re.MULTILINE)
    assert len({setting for setting, _, _ in found}) == len(found)
    return {setting: yaml.safe_load(value) for setting, value, _ in found}


def leaves(name: str) -> dict[str, Any]:
    return {f"{group}.{key}": value for group, values in RECIPES[name].items() for key, value in values.items()}


def test_every_recipe_has_a_page_and_every_page_a_recipe() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_of_a_recipe_is_on_its_page_with_its_value_and_its_source(name: str) -> None:
    shown, settings = rows(name), leaves(name)
    # YAML reads 1e-15, without a point, as text.
    same = {
        key: float(value) if isinstance(settings[key], float) else value
        for key, value in shown.items()
        if key in settings
    }
    assert same == settings
