"""``diff``: what two configurations train, and what to change in the second so that it trains like the first."""

from __future__ import annotations

import argparse
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, sqrt
from pathlib import Path

from ..contract.command_line import new_file
from ..errors import BudgetError, shorten
from ..errors import whole as checked
from ..planning.compute import Allocation
from ..trainers.doctor import reader_of
from ..trainers.registry import TRAINERS, noticed, trainer
from ..trainers.settings import (
    Batching,
    Configuration,
    RunPlan,
    Settings,
    Value,
    flags,
    load,
    meant_by,
    parse_value,
    render,
)
from ..trainers.trainer import Trainer
from .text import aligned_table, assignment, whole, write_json

OF_TRL = ("trl", "swift")
UPDATES = {
    "trl": ("gradient_accumulation_steps", "num_iterations"),
    "swift": ("gradient_accumulation_steps", "num_iterations"),
    "verl": ("actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_epochs"),
    "openrlhf": ("train.batch_size", "train.max_epochs"),
    "skyrl": ("trainer.policy_mini_batch_size", "trainer.update_epochs_per_batch"),
    "slime": ("global_batch_size", ""),
    "nemo-rl": ("policy.train_global_batch_size", ""),
    "tinker": ("num_substeps", ""),
    "open-instruct": ("num_mini_batches", "num_epochs"),
}
"""The setting that splits a batch into several optimizer steps, and the one that repeats training on each response."""
PARTS = ("num_substeps", "num_mini_batches")
"""Of the splitting settings, those that give the number of parts, not the size of a part."""
AHEAD = (
    r"(?:.*\.)?(?:async_queue_size|max_off_policy_steps|max_staleness_steps|max_trajectory_age_steps|async_steps"
    r"|max_steps_off_policy|staleness_threshold|num_warmup_batches)"
)
"""Settings that limit how many batches a response may lag behind the policy."""
SWITCHED = re.compile("async_queue_size|max_trajectory_age_steps")
"""Those that full configurations contain even if nothing is asynchronous."""
ALWAYS_AHEAD = {"prime-rl": 8, "open-instruct": 8}
"""Default lag in prime-rl's orchestrator.py and in open-instruct, which always sample ahead."""
MEMORY = re.compile(r".*(?:micro.*batch_size|max_token_len|gpu_memory_utilization|tensor_parallel_size).*")
"""Settings that change memory and speed but not what is learned."""
DEFAULT_RATES = dict.fromkeys(("trl", "verl", "openrlhf", "prime-rl", "skyrl", "slime"), 1e-6)
"""Default learning rates, from the sources that the trainers' modules name; other trainers choose by model."""
LABELS = {
    "devices": "devices that train",
    "n": "rollouts per problem, n",
    "B_p": "problems a step, B_p",
    "C": "rollouts generated a step, C",
    "B": "rollouts trained on a step",
    "updates": "updates a batch",
    "staleness": "staleness, in updates",
    "rate": "learning rate",
    "steps": "update steps",
    "rollouts": "rollouts of the run",
    "epochs": "epochs",
    "each": "rollouts a device and step",
}
SAME = ("n", "B_p", "C", "updates", "staleness", "rate")
"""Figures that must be equal for two configurations to train the same, step by step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two configurations.

    Attributes:
        figures: By the names of ``LABELS``, None if a figure cannot be known. Staleness is the largest number of
            updates between the policy that generates a response and the policy that learns from it.
    """

    name: str
    trainer: Trainer
    values: Mapping[str, Value]
    batching: Batching
    problems: int | None
    figures: Mapping[str, Fraction | float | int | None]

    def having(self, values: Mapping[str, Value]) -> Side:
        """The same side with other settings."""
        return side(self.name, self.trainer, values, self.batching.world_size, self.problems)


def side(name: str, known: Trainer, values: Mapping[str, Value], world_size: int | None, problems: int | None) -> Side:
    """Read a configuration."""
    settings = Settings(values=values, where=name, world_size=world_size, problems=problems)
    batching = known.parse(settings)
    n, a_step, steps = batching.rollouts_per_problem, batching.problems_per_batch, batching.update_steps
    ahead, said = _ahead(known, settings), settings.find(*_rate_names(known))[1]
    rate = DEFAULT_RATES.get(known.name) if said is None else said
    generated, updates, world = batching.batch_rollouts, batching.updates, batching.world_size
    # Several small batches of one policy in a step are one batch.
    at_once = None if updates is None else max(updates, Fraction(1))
    trained = n * a_step if n and a_step else None
    figures: dict[str, Fraction | float | int | None] = {
        "devices": world,
        "n": n,
        "B_p": a_step,
        "C": None if generated is None or updates is None else generated / updates,
        "B": trained,
        "updates": at_once,
        "staleness": None if at_once is None or ahead is None else ceil((1 + ahead) * at_once - 1),
        "rate": float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) else None,
        "steps": steps,
        "rollouts": batching.generated,
        "epochs": a_step * steps / problems if a_step and steps and problems else None,
        "each": trained / world if trained and world else None,
    }
    # By now the rate and the lag have been read as well.
    batching = noticed(known.title, values, batching, settings.read)
    return Side(name=name, trainer=known, values=values, batching=batching, problems=problems, figures=figures)


def _ahead(known: Trainer, settings: Settings) -> float | None:
    """Batches by which sampling may be ahead of training; None if unknown."""
    mode = settings.text("trainer.v1.trainer_mode", default="sync")
    switched = settings.is_on("train.async_enable", "async_train", "grpo.async_grpo.enabled")
    said = [
        value
        for name, value in settings.matching(AHEAD).items()
        if isinstance(value, int | float)
        and (switched or not SWITCHED.search(name))
        and (f".{mode}." in name or not name.startswith("trainer.v1."))
    ]
    if said:
        # veRL's threshold counts what is generated beyond the version being trained on.
        return said[0] + bool(settings.matching(r"async_training\..*"))
    return None if switched or mode != "sync" else ALWAYS_AHEAD.get(known.name, 0)


def _rate_names(known: Trainer) -> tuple[str, ...]:
    """The names of a trainer's learning rate, starting with the one in its settings."""
    one = Allocation(problems_per_batch=1, rollouts_per_problem=2, update_steps=1)
    settings = known.write(RunPlan(allocation=one, learning_rate=0.125)).settings
    written = next(name for name, value in settings.items() if value == 0.125)
    return tuple(dict.fromkeys((written, *(known.logs.learning_rates if known.logs else ()))))


def _device_settings(known: Trainer, devices: int) -> dict[str, Value]:
    """The settings with which a trainer uses this many devices."""
    if known.name in OF_TRL:
        return {"num_processes": devices}
    a = Allocation(problems_per_batch=devices * 48, rollouts_per_problem=2, update_steps=1)
    made = [known.write(RunPlan(allocation=a, world_size=w, micro_batch=1)).settings for w in (1, 3, 16, devices)]
    return {k: v for k, v in made[-1].items() if any(other.get(k) != made[0].get(k) for other in made)}


def trainer_of(values: Mapping[str, Value], where: str) -> Trainer:
    """The trainer that these settings belong to: the one that reads most of them.

    Raises:
        BudgetError: No trainer reads any, or two read as many.
    """
    # ms-swift's settings are TRL's and a few more.
    other = "trl" if any(map(reader_of(trainer("swift")).marks.match, values)) else "swift"
    read = {}
    for name in TRAINERS.keys() - {other}:
        settings = Settings(values=values, where=where)
        with suppress(BudgetError):
            trainer(name).parse(settings)
        read[name] = len(settings.read & values.keys())
    most = max(read.values())
    names = sorted(name for name, count in read.items() if count == most)
    if not most:
        raise BudgetError(f"{where}: no setting of a trainer that is known; say whose they are with --trainer")
    if len(names) > 1:
        whose = f"may be settings of {' or '.join(names)}"
        raise BudgetError(f"{where}: {whose}; say whose they are, as in {names[0]}:FILE, or with --trainer")
    return trainer(names[0])


def differing(a: Side, b: Side, names: Iterable[str]) -> list[str]:
    """The figures that are known for both sides and differ; a rate that neither sets is the trainer's default."""
    both = ((name, a.figures[name], b.figures[name]) for name in names)
    return [name for name, one, other in both if one != other and (name == "rate" or None not in (one, other))]


def changes(a: Side, b: Side) -> list[dict[str, Value]]:
    """The fewest settings to change in B so that it trains like A on its own devices; several if there is a choice.

    Each candidate is tested: B's trainer must read A's figures from it, except for how far it samples ahead.

    Raises:
        BudgetError: A figure of A is unknown, or B cannot have it.
    """
    f, known = a.figures, b.trainer
    lacking = [LABELS[name] for name in ("n", "B_p", "C", "updates") if f[name] is None]
    if lacking:
        raise BudgetError(f"A leaves open {'; '.join(lacking)}")
    goal = [name for name in ("n", "B_p", "C", "updates", "rate") if f[name] is not None]
    goal += [] if None in (f["steps"], b.figures["steps"]) else ["steps"]
    fixed = _device_settings(known, b.batching.world_size or 1).keys()

    def trains_alike(values: Mapping[str, Value]) -> bool:
        try:
            made = b.having(values)
        except BudgetError:
            return False
        contradicts = {*made.batching.inconsistent} - {*b.batching.inconsistent}
        return all(made.figures[name] == f[name] for name in goal) and not contradicts

    found: list[dict[str, Value]] = []
    for written, micro in _written(a, b):
        wanted = {name: value for name, value in written.items() if name not in fixed}
        values = {**b.values, **wanted}
        if (found and micro is None) or not trains_alike(values):
            continue
        for name in wanted:
            back = {k: v for k, v in values.items() if k != name} | {k: v for k, v in b.values.items() if k == name}
            values = back if trains_alike(back) else values
        made = {name: values[name] for name in wanted if name in values and values[name] != b.values.get(name)}
        found += [] if made in found else [made]
    if not found:
        raise BudgetError(f"no settings of {known.title} were found that train as A does on B's devices")
    return found


def _written(a: Side, b: Side) -> Iterator[tuple[dict[str, Value], int | None]]:
    """Settings with which B's trainer trains like A, and the micro-batch: B's, one from B's accumulation, or any."""
    f, known = a.figures, b.trainer
    n, a_step, updates, steps = (int(f[name] or 1) for name in ("n", "B_p", "updates", "steps"))
    passes = max(1, round(n * a_step / (f["C"] or 1)))
    ranks, batch = b.batching.data_parallel or b.batching.world_size or 1, n * a_step * updates // passes
    micro: list[int | None] = [None]
    if known.name in OF_TRL:
        accumulated = b.values.get("gradient_accumulation_steps", 1)
        whole_batch = accumulated * ranks * updates // passes if isinstance(accumulated, int) else 0
        kept = b.values.get("per_device_train_batch_size"), batch // whole_batch if whole_batch else None
        micro = [*(m for m in kept if isinstance(m, int) and m and batch // ranks % m == 0), None]
    rate = None if f["rate"] is None else float(f["rate"])
    a_batch = Allocation(problems_per_batch=batch // n, rollouts_per_problem=n, update_steps=max(1, steps // updates))
    plan = RunPlan(allocation=a_batch, world_size=ranks, problems=b.problems, learning_rate=rate)
    for size in micro:
        settings = dict(known.write(replace(plan, micro_batch=size)).settings)
        (split, again), parts = UPDATES.get(known.name, ("", "")), updates // passes
        size_of_part = settings.get(split)
        if split in PARTS:
            settings[split] = parts
        elif isinstance(size_of_part, int):
            settings[split] = size_of_part // parts
        settings |= {again: passes} if again else {}
        yield settings | ({"max_steps": steps} if known.name in OF_TRL else {}), size


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "diff",
        help="what two configurations train, and what to set so that they train the same",
        description="Compare what two configurations train, of one trainer or of two, and say what to set in B so that "
        "it trains as A does. With one configuration, B is the same on other devices (--gpus) or with other settings "
        "(--set). Whose settings they are is found out; where that is not clear, say TRAINER:FILE.",
        epilog="example: isocompute-budget diff old.sh new.sh --problems 8000\n"
        "example: isocompute-budget diff trl:grpo.yaml verl:run.sh --world-size 8\n"
        "example: isocompute-budget diff run.sh --world-size 8 --gpus 2x\n"
        "example: isocompute-budget diff run.sh --set num_generations=16\n"
        "example: isocompute-budget diff --world-size 8 --gpus 2x -- --num_generations 8",
    )
    parser.add_argument("settings", nargs="+", metavar="FILE|FLAG", help="A and B, or A, or the flags of A after --")
    parser.add_argument("--trainer", choices=TRAINERS, help="whose settings they are (default: as they say)")
    parser.add_argument("--gpus", metavar="K|Kx", help="B is A on so many devices: 16, or 2x for twice as many")
    said = "B is A with this setting, by the trainer's own name"
    parser.add_argument(
        "--set", dest="changed", action="append", default=[], type=assignment, metavar="NAME=VALUE", help=said
    )
    said = "devices that train, where settings do not say (TRL's are the launcher's)"
    parser.add_argument("--world-size", type=whole, metavar="W", help=said)
    parser.add_argument("--problems", type=whole, metavar="D", help="training problems: epochs, or steps of epochs")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 unless they train the same, for CI")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="also write the figures and what to set")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the figures of both, and what to set."""
    a, b = _sides(arguments)
    both = {"A": a, "B": b}
    yield from (f"{label}  {one.name}, {one.trainer.title}" for label, one in both.items())
    yield ""
    plainly = all(one.figures["B"] == one.figures["C"] for one in both.values())
    shown = [name for name in LABELS if a.figures[name] != b.figures[name] or a.figures[name] is not None]
    rows = [_row(name, a, b) for name in shown if name != "B" or not plainly]
    yield from aligned_table(["", "A", "B", ""], rows)
    yield ""
    different, found = differing(a, b, SAME), list[dict[str, Value]]()
    unknown = [LABELS[name] for name in SAME if name != "rate" and None in (a.figures[name], b.figures[name])]
    if different:
        found = yield from _advice(a, b, different)
    elif unknown:
        yield f"cannot say whether they train the same, since these are not known of both: {'; '.join(unknown)}"
    else:
        yield f"B trains as A does{', for another number of steps' if differing(a, b, ['steps']) else ''}"
    left = [name.rpartition(".")[2] for name in b.values if MEMORY.fullmatch(name)]
    left = [name for name in left if not any(name in remark for remark in b.batching.inconsistent)]
    if arguments.gpus is not None and left and b.trainer.name not in OF_TRL:
        yield f"leave alone, since they change memory and speed only: {', '.join(dict.fromkeys(left))}"
    if a.trainer == b.trainer and (apart := _not_compared(a, b)):
        yield f"not compared, and different: {', '.join(apart)}"
    for kind in ("inconsistent", "unknown"):
        own, other = (getattr(one.batching, kind) for one in (a, b))
        yield from (f"{kind} in {'both' if remark in other else 'A'}: {remark}" for remark in own)
        yield from (f"{kind} in B: {remark}" for remark in other if remark not in own)
    if arguments.strict and (different or unknown):
        arguments.exit_status = 1
    if arguments.json is not None:
        figures = {
            label: {k: v if v is None else float(v) for k, v in one.figures.items()} for label, one in both.items()
        }
        named = {
            label: {"name": one.name, "trainer": one.trainer.name, **figures[label]} for label, one in both.items()
        }
        write_json({**named, "different": different, "unknown": unknown, "set_in_B": found}, arguments.json)


def _not_compared(a: Side, b: Side) -> list[str]:
    """Settings of a shared trainer that differ but determine neither batches nor steps."""
    names = sorted({*a.batching.ignored, *b.batching.ignored})
    both = ((name, a.values.get(name), b.values.get(name)) for name in names)
    return [f"{name} ({shorten(mine)} → {shorten(theirs)})" for name, mine, theirs in both if mine != theirs]


def _sides(arguments: argparse.Namespace) -> tuple[Side, Side]:
    """The two configurations that the command line names."""
    words: list[str] = arguments.settings
    for option in ("world_size", "problems"):
        if (given := getattr(arguments, option)) is not None:
            checked(given, f"--{option.replace('_', '-')}", least=1)
    first = next((k for k, word in enumerate(words) if "=" in word or word.startswith("-")), len(words))
    files, said, more = words[:first], flags(words[first:]), dict(arguments.changed)
    if len(files) > 2 or (len(files) == 2 and (said or more)):
        raise BudgetError("diff compares two files, or one configuration before and after --gpus or --set")
    if len(files) < 2 and not more and arguments.gpus is None:
        raise BudgetError("there is one configuration: give another file, --gpus (16 or 2x) or --set NAME=VALUE")
    read = []
    for source in files or [""]:
        whose, _, path = source.partition(":") if source.partition(":")[0] in TRAINERS else ("", "", source)
        name, values = path or "the flags", {**(load(Path(path)) if path else {}), **(said if len(files) < 2 else {})}
        given = whose or arguments.trainer
        known = trainer(given) if given else trainer_of(values, name)
        one = side(name, known, values, arguments.world_size, arguments.problems)
        if len(one.batching.ignored) == len(values):
            raise BudgetError(f"{name}: holds no setting of {known.title} from which batches or steps follow")
        read.append(one)
    last, values, world = read[-1], dict(read[-1].values), arguments.world_size
    name = ", ".join([last.name, *(f"{key}={value}" for key, value in more.items())])
    values |= {key: parse_value(value) for key, value in more.items()}
    if arguments.gpus is not None:
        world = _devices(arguments.gpus, last)
        values |= _device_settings(last.trainer, world)
        name = f"{name}, on {world:,} devices"
    changed = side(name, last.trainer, values, world, arguments.problems)
    for idle in (key for key in more if key in changed.batching.ignored):
        meant = f": did you mean {guess}?" if (guess := meant_by(idle, last.values)) else ""
        raise BudgetError(f"--set {idle}: neither batches nor steps of {last.trainer.title} follow from it{meant}")
    return read[0], changed


def _devices(text: str, before: Side) -> int:
    """The devices that ``--gpus`` means."""
    match, now = re.fullmatch(r"([1-9]\d{0,6})(x?)", text), before.batching.world_size
    if not match:
        wanted = "a number of devices such as 16, also for fewer than now, or a whole factor such as 2x"
        raise BudgetError(f"--gpus is {text!r}; it must be {wanted}")
    if before.trainer.name == "tinker":
        raise BudgetError("--gpus: with Tinker, devices are the service's")
    if match[2] and now is None:
        raise BudgetError(f"--gpus {text}: how many devices train now is not known; say it with --world-size W")
    return int(match[1]) * ((now or 1) if match[2] else 1)


def _row(name: str, a: Side, b: Side) -> list[object]:
    odd = "≠" if name not in ("devices", "each") and differing(a, b, [name]) else ""
    unknown = None in (a.figures[name], b.figures[name])
    return [LABELS[name], _cell(name, a), _cell(name, b), odd or "?" * unknown]


def _cell(name: str, one: Side) -> str:
    value = one.figures[name]
    silent = name == "rate" and all(one.values.get(each) is None for each in _rate_names(one.trainer))
    if value is None:
        return "not set" if silent else "unknown"
    return _shown(name, value) + " (default)" * silent


def _shown(name: str, value: Fraction | float) -> str:
    if name == "rate":
        return f"{value:.3g}"
    return f"{int(value):,}" if value == int(value) else f"{float(value):,.2f}"


def _advice(a: Side, b: Side, different: Sequence[str]) -> Generator[str, None, list[dict[str, Value]]]:
    """What to change, as sentences and as settings."""
    yield f"they do not train the same: {'; '.join(LABELS[name] for name in different)}"
    found: list[dict[str, Value]] = []
    try:
        found = changes(a, b)
        one_of = "one of these lines" if len(found) > 1 else "this"
        yield from [] if found == [{}] else [f"so that B trains as A does, set in B {one_of}:"]
        yield from (f"  {_flags(made, b)}" for made in found if made)
        if differing(a, b.having({**b.values, **found[0]}), ["staleness"]):
            yield "staleness still differs: how far a trainer samples ahead is set apart from its batches"
    except BudgetError as error:
        yield f"what to set in B cannot be said: {error}"
    one, other, rate = a.figures["B"], b.figures["B"], a.figures["rate"]
    if one and other and one != other and a.figures["n"] == b.figures["n"]:
        ratio, name = other / one, _rate_names(b.trainer)[0]
        scaled = _flags({name: float(f"{rate * sqrt(ratio):.3g}")}, b) if rate else f"{name} × {sqrt(ratio):.3g}"
        cost, each = a.figures["rollouts"], b.figures["C"]
        steps = f", and {int(cost / each):,} steps for as many rollouts" if cost and each else ""
        kept = f"its batch of {_shown('B', other)}, {float(ratio):.3g} times A's"
        yield f"or keep {kept}, with the rate by the √B rule{steps}:"
        yield f"  {scaled}    (IsoCompute Playbook, arXiv 2603.12151, Factor 3)"
    return found


def _flags(settings: Mapping[str, Value], of: Side) -> str:
    return " ".join(render(Configuration(settings=settings), of.trainer.style))
