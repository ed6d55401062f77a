"""Which code an entry point reaches: what changes its result changes its hash, and little else does."""

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.running import identity
from experiments.running.identity import COMMAND_LOOP, LOOP, ROOTS, Module, code_by_module, module_of, reached
from experiments.stages import inputs

from .made import ROOT

ENTRIES = {stage: inputs.entries_of(stage) for stage in ("prepare", "sweep", "frontier", "prescribe")}


def forget(*, files: bool = True) -> None:
    for remembered in (identity.reached, identity.code_by_module):
        remembered.cache_clear()
    for remembered in (identity._folders, identity.source_of, identity.module_of) if files else ():
        remembered.cache_clear()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, str]]]:
    """Writes a package ``toy`` and hashes what ``toy.a:run`` reaches of it."""
    monkeypatch.setattr(identity, "ROOTS", ("toy",))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**texts: str) -> dict[str, str]:
        (tmp_path / "toy").mkdir(exist_ok=True)
        for name, text in {"__init__": "", **texts}.items():
            (tmp_path / "toy" / (f"{name}.py" if "." not in name else name)).write_text(text)
        unload()
        forget()
        return code_by_module("toy.a:run")

    yield write
    unload()
    forget()


def run() -> object:
    """What the package's entry point returns."""
    unload()
    return importlib.import_module("toy.a").run()


def unload() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        del sys.modules[name]
    importlib.invalidate_caches()


B = "X = 1\nY = 2\n\n\ndef f():\n    return X\n\n\ndef g():\n    return Y\n"


@pytest.mark.parametrize(
    "a",
    [
        "import toy.b\n\n\ndef run():\n    return toy.b.f()\n",
        "def run():\n    from toy import b as it\n    return it.f()\n",
        "from . import b\n\n\nclass Runs:\n    it = b.f\n\n\ndef run():\n    return Runs.it()\n",
        "try:\n    from .b import f\nexcept ImportError:\n    f = None\n\n\ndef run():\n    return f()\n",
    ],
)
def test_a_name_is_followed_to_what_it_needs_and_to_nothing_beside_it(toy: Callable[..., object], a: str) -> None:
    before = toy(a=a, b=B)
    assert run() == 1
    assert toy(a=a, b=B.replace("X = 1", "X = 3")) != before
    assert toy(a=a, b=B.replace("Y = 2", "Y = 3").replace("return Y", "return -Y")) == before
    assert toy(a=a + "\n\nZ = 4\n", b="# Said.\n" + B) == before


def test_a_decorator_and_a_call_that_register_nothing_are_no_reason_to_be_reached(toy: Callable[..., object]) -> None:
    a = "from .c import call\nfrom . import b\n\n\ndef run():\n    return call(1)\n"
    plain = "from .c import call\n\nY = 2\n\n\n@call\ndef g():\n    return Y\n\n\nOTHER = call(Y)\n"
    c = "def call(it):\n    return it\n"
    before = toy(a=a, b=plain, c=c)
    assert run() == 1
    assert toy(a=a, b=plain.replace("Y = 2", "Y = 3"), c=c) == before


def test_a_name_that_is_loaded_lazily_a_script_and_a_file_beside_are_reached(toy: Callable[..., object]) -> None:
    lazy = (
        "from importlib import import_module\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    from .b import g\n\n_MODULES = {'g': 'b', 'other': 'c'}\n\n\ndef __getattr__(name):\n"
        "    return getattr(import_module(f'.{_MODULES[name]}', __name__), name)\n"
    )
    a, c = "def run():\n    from toy import g\n    return g()\n", "def other():\n    return 1\n"
    before = toy(__init__=lazy, a=a, b=B, c=c)
    assert run() == 2
    assert toy(__init__=lazy, a=a, b=B.replace("Y = 2", "Y = 3"), c=c) != before
    assert toy(__init__=lazy, a=a, b=B.replace("X = 1", "X = 3"), c=c.replace("1", "2")) == before

    script = "Y = 2\n\nif __name__ == '__main__':\n    print(Y)\n"
    a = "import sys\nfrom . import b\n\n\ndef run():\n    return [sys.executable, b.__file__]\n"
    before = toy(a=a, b=script)
    assert toy(a=a, b=script.replace("Y = 2", "Y = 3")) != before
    a = "def run():\n    return ['python', '-m', 'toy.b']\n"
    before = toy(a=a, b=script)
    assert toy(a=a, b=script.replace("Y = 2", "Y = 3")) != before

    a = "from pathlib import Path\n\n\ndef run():\n    return Path(__file__).with_name('data.json').read_text()\n"
    before = toy(a=a, **{"data.json": "1"})
    assert toy(a=a, **{"data.json": "2"}) != before


def test_the_order_of_statements_counts_and_a_variable_hides_a_name(toy: Callable[..., object]) -> None:
    one, other = "X = 1\nY = X\nX = 2\n", "X = 1\nX = 2\nY = X\n"
    a = "from .b import Y\n\n\ndef run():\n    return Y\n"
    assert toy(a=a, b=one) != toy(a=a, b=other)
    hidden = "from .b import f, g\n\n\ndef run(g=1):\n    X = g\n    return f() + X\n"
    before = toy(a=hidden, b=B)
    assert toy(a=hidden, b=B.replace("Y = 2", "Y = 3")) == before
    shown = "from .b import f, g\n\n\ndef run(it=1):\n    def inner(g):\n        return g\n\n    return inner(g())\n"
    before = toy(a=shown, b=B)
    assert toy(a=shown, b=B.replace("Y = 2", "Y = 3")) != before


def test_an_import_that_is_exchanged_for_another_is_seen(toy: Callable[..., object]) -> None:
    a = "from .b import f as one, g as two\n\n\ndef run():\n    return one() - two()\n"
    assert toy(a=a, b=B) != toy(a=a.replace("f as one, g as two", "g as one, f as two"), b=B)
    a = "from math import floor as it\n\n\ndef run():\n    return it(1.5)\n"
    assert toy(a=a) != toy(a=a.replace("floor", "ceil"))


SAID = {
    "own": "{module}_C{i}",
    "before": "{module}_f0()",
    "from": "{other}_C{i}",
    "attribute": "{other}.{other}_C{i}",
    "absolute": "toy.{other}.{other}_f1()",
    "inside": "own()",
    "getattr": "getattr({other}, '{other}_' + 'C{i}')",
    "globals": "globals()['{module}_' + 'C{i}']",
    "star": "{other}_C{i}",
    "vars": "vars({other})['{other}_C{i}']",
    "modules": "sys.modules[{other}.__name__].{other}_C{i}",
    "own module": "getattr(sys.modules[__name__], '{module}_C{i}')",
    "eval": "eval('{module}_' + 'C{i}')",
    "imported": "import_module('toy.{other}').{other}_C{i}",
    "computed": "import_module('toy.' + {other!r}).{other}_C{i}",
    "formatted": "[import_module(f'toy.{{of}}') for of in {other!r}][0].{other}_C{i}",
    "default": "given",
    "class": "K{name}().value",
    "table": "sum(each() for each in TABLE)",
    "called": "sum(each() for each in TABLE)",
    "appended": "sum(each() for each in TABLE)",
    "looped": "sum(each() for each in TABLE)",
    "in a class": "sum(each() for each in TABLE)",
    "patched": "0",
}
"""How a function names what it adds up."""
BESIDE = {
    "star": ("imports", "from .{other} import *"),
    "table": ("above", "{table}\n@register\ndef r_{name}():\n    return {module}_C{i}"),
    "called": ("above", "{table}\ndef s_{name}():\n    return {module}_C{i}\nS_{name} = register(s_{name})"),
    "appended": ("above", "{table}\ndef t_{name}():\n    return {module}_C{i}\nc.TABLE.append(t_{name})"),
    "looped": ("above", "{table}\nfor each in (lambda: {module}_C{i},):\n    TABLE.append(each)"),
    "in a class": (
        "above",
        "{table}\nclass L{name}:\n    @register\n    def l(self=0):\n        return {module}_C{i}",
    ),
    "class": ("above", "class K{name}:\n    value = {module}_C{i}"),
    "patched": ("above", "{other}.{other}_C{i} = {module}_C{i} + {other}.{other}_C{i}"),
    "inside": ("inside", "    from .{other} import {other}_f{i} as own"),
    "default": ("default", "given={module}_C{i}"),
}
"""What else that needs: lines of the module before the function or at its head, of the function, or its argument."""
OF_THE_LAST = ("own", "before", "globals", "own module", "eval", "default", "class")
TABLES = "TABLE = []\ndef register(f):\n    TABLE.append(f)\n    return f"


def program(functions: list[list[tuple[str, int, int]]]) -> dict[str, str]:
    """Modules a, b and c, of which a earlier one uses the later, with two functions each that add up what they name."""
    texts = {}
    for place, module in enumerate("abc"):
        later = "abc"[place + 1 :]
        lines = ["import sys", "from importlib import import_module"]
        for other in later:
            lines += [f"from .{other} import {other}_C0, {other}_C1, {other}_f0", f"import toy.{other}"]
            lines.append(f"from . import {other}")
        values = [f"{module}_C{i} = {10 ** (2 * place + i)}" for i in range(2)]
        body = [*values, *([] if later else [TABLES])]
        for number, terms in enumerate(functions[2 * place : 2 * place + 2]):
            name, said = f"{module}_f{number}", ["0"]
            beside: dict[str, list[str]] = {"imports": lines, "above": [], "inside": [], "default": []}
            for asked, which, i in terms:
                kind = asked if later or asked in OF_THE_LAST else "own"
                kind = "own" if kind == "before" and not number else kind
                given = {"module": module, "other": later[which % len(later)] if later else "", "i": i, "name": name}
                given["table"] = "from . import c\nfrom .c import TABLE, register"
                said.append(SAID[kind].format(**given))
                if kind in BESIDE:
                    where, text = BESIDE[kind]
                    beside[where].append(text.format(**given))
            head = f"def {name}({', '.join(beside['default'][-1:])}):"
            body += [*beside["above"], head, *beside["inside"], f"    return {' + '.join(said)}"]
        texts[module] = "\n".join([*lines, *body]) + "\n"
    texts["a"] += "\n\ndef run():\n    return a_f0() + a_f1()\n"
    return texts


def multiplied(texts: dict[str, str], module: str, number: int) -> dict[str, str]:
    """The program in which a constant of a module is another."""
    place = f"\n{module}_C{number} = "
    assert texts[module].count(place) == 1
    return {**texts, module: texts[module].replace(place, f"{place}7 * ")}


@pytest.mark.parametrize("kind", sorted(SAID.keys() - {"patched"}))
def test_each_way_of_naming_a_value_is_followed(toy: Callable[..., object], kind: str) -> None:
    # What is named is reached in no other way.
    texts = program([[(kind, 0, 0)], [], *[[("own", 0, 0)]] * 4])
    before, value = toy(**texts), run()
    module = "a" if kind in OF_THE_LAST or "TABLE" in SAID[kind] else "b"
    after = toy(**multiplied(texts, module, 0))
    assert run() != value
    assert after != before


TERMS = st.lists(st.tuples(st.sampled_from(sorted(SAID)), st.integers(0, 1), st.integers(0, 1)), max_size=3)


@given(
    functions=st.lists(TERMS, min_size=6, max_size=6),
    changed=st.tuples(st.sampled_from("abc"), st.integers(0, 1)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_what_changes_the_value_of_a_program_changes_its_hash(
    toy: Callable[..., object], functions: list[list[tuple[str, int, int]]], changed: tuple[str, int]
) -> None:
    texts = program(functions)
    before, value = toy(**texts), run()
    assert toy(**{name: f'"""Said."""\n# Said.\n{text}' for name, text in texts.items()}) == before
    after = toy(**multiplied(texts, *changed))
    if run() != value:
        assert after != before


@cache
def importers() -> grimp.ImportGraph:
    return grimp.build_graph("experiments", *(f"isocompute.{p}" for p in ("budget", "rollout", "learner", "frontier")))


@cache
def imported_by(entry: str) -> frozenset[str]:
    """Every module that one imports, however deep, with those that are loaded with them."""
    found = importers().find_upstream_modules(entry) | {entry}
    return frozenset(".".join(name.split(".")[:length]) for name in found for length in range(1, name.count(".") + 2))


ALL = "hashes of the whole project"


@pytest.mark.slow(ALL)
def test_no_stage_reaches_what_it_does_not_import() -> None:
    for entries in (*ENTRIES.values(), (LOOP,), (COMMAND_LOOP,)):
        allowed = frozenset[str]().union(*(imported_by(entry.partition(":")[0]) for entry in entries))
        assert {name for name, names in reached(*entries).names.items() if names} <= allowed


@cache
def as_they_are() -> dict[str, str]:
    return {stage: identity.digest(code_by_module(*entries)) for stage, entries in ENTRIES.items()}


def changed_by(found: Module, text: str) -> set[str]:
    """The stages that run again where a module has another text."""
    before, other = as_they_are(), Module(found.name, found.path, text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "module_of", lambda name: other if name == found.name else module_of(name))
        forget(files=False)
        now = {stage: identity.digest(code_by_module(*entries)) for stage, entries in ENTRIES.items()}
    forget(files=False)
    return {stage for stage in now if now[stage] != before[stage]}


TRAINING = {"prepare", "sweep", "prescribe"}


@pytest.mark.slow(ALL)
@pytest.mark.parametrize(
    ("module", "name", "stages"),
    [
        ("isocompute.learner.objective.loss", "LOG_RATIO_BOUND", TRAINING),
        ("isocompute.budget.ledger.meter", "Meter", TRAINING),
        ("isocompute.rollout.scoring.rules", "QUICK", TRAINING),
        ("isocompute.frontier.posterior.posterior", "CHAINS", {"frontier", "prescribe"}),
        ("isocompute.rollout.contract.tables", "TABLE_KEY", {*TRAINING, "frontier"}),
        ("experiments.report", "WORDS", {"frontier"}),
        ("experiments.stages.prepare", "score", {"prepare"}),
        ("experiments.settings.reading", "LISTS", {*TRAINING, "frontier"}),
        ("isocompute.budget.trainers.doctor", "EVALUATION", set()),
    ],
)
def test_a_change_runs_the_stages_that_reach_it_and_no_others(module: str, name: str, stages: set[str]) -> None:
    found = module_of(module)
    assert found is not None
    text = found.text.decode()
    assert name in found.bindings
    assert changed_by(found, f"{text}\n\n{name} = {name}\n") == stages
    assert changed_by(found, f"# Said.\n{text}\n\nANOTHER_NAME = 1\n") == set()


def test_no_code_finds_its_subclasses_which_is_not_followed() -> None:
    texts = {path: path.read_text() for root in ROOTS for path in sources(root)}
    asking = [path.name for path, text in texts.items() if "__subclasses__" in text or "__init_subclass__" in text]
    # That one asks for the built-in errors, and the other says so.
    assert sorted(asking) == ["child.py", "identity.py"]


def sources(root: str) -> Iterator[Path]:
    folders = [ROOT / "contract", *ROOT.glob("packages/*/src")] if root == "isocompute" else [ROOT / root]
    for folder in folders:
        yield from (p for p in folder.rglob("*.py") if not {"tests", "studies"} & {*p.relative_to(ROOT).parts})
