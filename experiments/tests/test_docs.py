"""What the documents point at is there, and what they say about commands is so."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from experiments import settings, stages

ROOT = Path(__file__).parents[2]
DOCUMENTS = [p for p in ROOT.glob("**/*.md") if not {".nox", "outputs", "work"} & set(p.relative_to(ROOT).parts)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_stages_named_are_there() -> None:
    known = {*stages.STAGES, *stages.SET_STAGES, "repro", "schema", "send", "init", "probe"}
    for document in DOCUMENTS:
        for stage in re.findall(r"python -m experiments (\w+)", document.read_text()):
            assert stage in known, f"{document}: {stage}"


def test_every_preset_of_the_readme_can_be_read() -> None:
    for name in re.findall(r"`(tiny|smoke|paper)`", (ROOT / "README.md").read_text()):
        assert settings.load(ROOT / "params.yaml", name).name == name


def test_every_column_of_the_schemas_is_in_the_reference() -> None:
    import json

    reference = (ROOT / "docs" / "artifacts.md").read_text()
    for path in (ROOT / "contract" / "schemas").glob("*.json"):
        schema = json.loads(path.read_text())
        section = reference.split(f"## {schema['name']}\n")[1].split("\n## ")[0]
        for column in schema["columns"]:
            assert f"`{column['name']}`" in section


def test_every_section_of_the_api_pages_shows_something() -> None:
    """A module whose docstring is all there is would leave a section empty, and no warning."""
    for page in (ROOT / "docs" / "api").glob("*.md"):
        modules = re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
        assert modules, page
        for name in modules:
            module = import_module(name)
            exported = getattr(module, "__all__", None)
            own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == name and not n.startswith("_")]
            assert exported or own, f"{page}: {name}"
