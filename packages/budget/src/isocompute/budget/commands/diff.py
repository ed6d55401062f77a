"""``diff``: what two configurations train, and what to change in the second so that it trains as the first does."""

from __future__ import annotations

import argparse
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from ..errors import BudgetError
from ..planning.compute import Allocation
from ..trainers.evals import reader_of
from ..trainers.registry import TRAINERS, trainer
from ..trainers.settings import (
    Batching,
    Configuration,
    Parallelism,
    RunPlan,
    Settings,
    Value,
    flags,
    load,
    parse_value,
    render,
)
from ..trainers.trainer import Trainer
from .text import aligned_table, assignment, whole, write_json

SPLITS = {
    "trl": "gradient_accumulation_steps",
    "swift": "gradient_accumulation_steps",
    "verl": "actor_rollout_ref.actor.ppo_mini_batch_size",
    "openrlhf": "train.batch_size",
    "skyrl": "trainer.policy_mini_batch_size",
    "slime": "global_batch_size",
    "nemo-rl": "policy.train_global_batch_size",
}
"""The setting that is divided to take several optimizer steps on different parts of a batch."""
PARTS = {"tinker": "num_substeps", "open-instruct": "num_mini_batches"}
"""The setting that says how many parts."""
PASSES = {
    "trl": "num_iterations",
    "swift": "num_iterations",
    "verl": "actor_rollout_ref.actor.ppo_epochs",
    "openrlhf": "train.max_epochs",
    "skyrl": "trainer.update_epochs_per_batch",
    "open-instruct": "num_epochs",
}
"""The setting that says how often each response is trained on."""
AHEAD: Mapping[str, Sequence[tuple[str, Value]]] = {
    "openrlhf": [("train.async_queue_size", None), ("async_queue_size", None)],
    "prime-rl": [("orchestrator.max_off_policy_steps", None), ("max_off_policy_steps", 8)],
    "skyrl": [("trainer.fully_async.max_staleness_steps", None)],
    "open-instruct": [("async_steps", 8)],
    "nemo-rl": [("grpo.async_grpo.max_trajectory_age_steps", None)],
    "tinker": [("async_config.max_steps_off_policy", None), ("max_steps_off_policy", None)],
}
"""Settings that say how many batches a response may be behind the policy, and their defaults where it always may be."""
MEMORY = re.compile(r".*(?:micro.*batch_size|max_token_len|gpu_memory_utilization|tensor_parallel_size).*")
"""Settings that change memory and speed and nothing that is learned."""
SAME = ("n", "B_p", "C", "updates", "staleness", "rate")
"""What must be equal for two configurations to train the same, step by step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two configurations.

    Attributes:
        figures: By name, None where a figure cannot be known: n, B_p, B (rollouts that a step trains on), C (rollouts
            generated a step), updates of a batch, staleness (updates by which a response may be older than the policy
            that learns from it), rate, steps, rollouts, epochs, devices, and each (rollouts of a device and step).
    """

    name: str
    trainer: Trainer
    values: Mapping[str, Value]
    batching: Batching
    problems: int | None
    figures: Mapping[str, Fraction | float | int | None]

    def having(self, values: Mapping[str, Value]) -> Side:
        """The same with other settings."""
        return side(self.name, self.trainer, values, self.batching.world_size, self.problems)


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


def side(name: str, known: Trainer, values: Mapping[str, Value], world_size: int | None, problems: int | None) -> Side:
    """Read a configuration."""
    settings = Settings(values=values, where=name, world_size=world_size, problems=problems)
    batching = known.parse(settings)
    n, problems_a_step, updates = batching.rollouts_per_problem, batching.problems_per_batch, batching.updates
    generated, world, steps = batching.batch_rollouts, batching.world_size, batching.update_steps
    # Several small batches of one policy for a step are one batch.
    at_once = None if updates is None else max(updates, Fraction(1))
    a_step = None if generated is None or updates is None else generated / updates
    ahead, rate = _ahead(known, settings), settings.find(*_rate_names(known))[1]
    trained = n * problems_a_step if n and problems_a_step else None
    figures: dict[str, Fraction | float | int | None] = {
        "devices": world,
        "n": n,
        "B_p": problems_a_step,
        "C": a_step,
        "B": trained,
        "updates": at_once,
        "staleness": None if at_once is None or ahead is None else ceil((1 + ahead) * at_once - 1),
        "rate": float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) else None,
        "steps": steps,
        "rollouts": batching.generated,
        "epochs": problems_a_step * steps / problems if problems_a_step and steps and problems else None,
        "each": trained / world if trained and world else None,
    }
    return Side(name=name, trainer=known, values=values, batching=batching, problems=problems, figures=figures)


def _ahead(known: Trainer, settings: Settings) -> float | None:
    """Batches by which sampling is ahead of training; None where that is not known."""
    if known.name == "verl":
        if settings.matching(r"async_training\..*"):
            threshold = settings.find("async_training.staleness_threshold")[1]
            return 1 + (threshold if isinstance(threshold, int | float) else 0.1)
        mode = settings.text("trainer.v1.trainer_mode", default="sync")
        return 0 if mode == "sync" else settings.whole(f"trainer.v1.{mode}.num_warmup_batches") or 1
    for name, default in AHEAD.get(known.name, ()):
        value = settings.find(name)[1]
        value = default if value is None else value
        if isinstance(value, int | float):
            return value
    asynchronous = settings.is_on("train.async_enable", "async_train", "grpo.async_grpo.enabled")
    return None if asynchronous else 0


def _rate_names(known: Trainer) -> tuple[str, ...]:
    """The names of a trainer's learning rate, that of its settings first."""
    one = Allocation(problems_per_batch=1, rollouts_per_problem=2, update_steps=1)
    settings = known.write(RunPlan(allocation=one, learning_rate=0.125)).settings
    written = next(name for name, value in settings.items() if value == 0.125)
    return tuple(dict.fromkeys((written, *(known.logs.learning_rates if known.logs else ()))))


def _device_settings(known: Trainer, devices: int) -> dict[str, Value]:
    """The settings with which a trainer uses a number of devices."""
    if known.name in ("trl", "swift"):
        return {"num_processes": devices}
    a = Allocation(problems_per_batch=devices * 48, rollouts_per_problem=2, update_steps=1)
    made = [known.write(RunPlan(allocation=a, world_size=w, micro_batch=1)).settings for w in (1, 3, 16, devices)]
    return {k: v for k, v in made[-1].items() if any(other.get(k) != made[0].get(k) for other in made)}


def trainer_of(values: Mapping[str, Value], where: str) -> Trainer:
    """The trainer whose settings these are: the one that reads most of them.

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
    if not most or len(names) > 1:
        why = f"may be of {' or '.join(names)}" if most else "holds no setting of a trainer that is known"
        raise BudgetError(f"{where}: {why}; say whose it is, as in {names[0]}:FILE or with --trainer")
    return trainer(names[0])


def differing(a: Side, b: Side, names: Iterable[str]) -> list[str]:
    """The figures that are known of both and are not the same; a rate that neither says is that of the trainer."""
    both = ((name, a.figures[name], b.figures[name]) for name in names)
    return [name for name, one, other in both if one != other and (name == "rate" or None not in (one, other))]


def changes(a: Side, b: Side) -> list[dict[str, Value]]:
    """The fewest changes of B's settings with which it trains as A does, on B's devices; several where it has a choice.

    They are tried: what B would read of its settings then is what A has.

    Raises:
        BudgetError: A has something that is not known, or B's settings cannot have it.
    """
    f, known = a.figures, b.trainer
    lacking = [LABELS[name] for name in ("n", "B_p", "C", "updates") if f[name] is None]
    if lacking:
        raise BudgetError(f"A does not say its {', '.join(lacking)}: {'; '.join(a.batching.unknown)}")
    # How far sampling is ahead is no matter of batches.
    goal = [name for name in (*SAME, "steps") if name != "staleness" and None not in (f[name], b.figures[name])]
    goal += ["rate"] if f["rate"] and not b.figures["rate"] else []
    remarks = {*b.batching.inconsistent}
    fixed = _device_settings(known, b.batching.world_size or 1).keys()

    def trains_alike(values: Mapping[str, Value]) -> bool:
        try:
            made = b.having(values)
        except BudgetError:
            return False
        return all(made.figures[name] == f[name] for name in goal) and remarks >= {*made.batching.inconsistent}

    found: list[dict[str, Value]] = []
    for written in _written(a, b):
        wanted = {name: value for name, value in written.items() if name not in fixed}
        values = {**b.values, **wanted}
        if not trains_alike(values):
            continue
        for name in wanted:
            kept = {k: v for k, v in values.items() if k != name} | {k: v for k, v in b.values.items() if k == name}
            values = kept if trains_alike(kept) else values
        made = {name: values[name] for name in wanted if name in values and values[name] != b.values.get(name)}
        if made not in found:
            found.append(made)
    if not found:
        raise BudgetError(f"no settings of {known.title} were found that train as A does on B's devices")
    return found


def _written(a: Side, b: Side) -> Iterator[dict[str, Value]]:
    """Whole settings for B's trainer of what A trains, with B's micro-batch, its accumulation, or neither."""
    f, known = a.figures, b.trainer
    n, updates, steps = int(f["n"] or 1), int(f["updates"] or 1), int(f["steps"] or 1)
    passes = round(n * int(f["B_p"] or 1) / (f["C"] or 1))
    allocation = Allocation(
        problems_per_batch=int(f["B_p"] or 1) * updates // passes,
        rollouts_per_problem=n,
        update_steps=max(1, steps // updates),
    )
    ranks = b.batching.data_parallel or b.batching.world_size or 1
    share = allocation.batch_rollouts // ranks
    device, accumulated = b.values.get("per_device_train_batch_size"), b.values.get("gradient_accumulation_steps", 1)
    if isinstance(accumulated, int) and accumulated * passes % updates == 0:
        accumulated = accumulated * updates // passes
    kept = [device, share // accumulated if isinstance(accumulated, int) and share % accumulated == 0 else None]
    micro = [m for m in kept if isinstance(m, int) and m >= 1 and share % m == 0] if known.name in SPLITS else []
    rate = f["rate"] if f["rate"] != b.figures["rate"] else None
    for size in (*micro, None):
        plan = RunPlan(
            allocation=allocation,
            world_size=ranks,
            parallelism=Parallelism(),
            micro_batch=size,
            problems=b.problems,
            learning_rate=None if rate is None else float(rate),
        )
        settings = dict(known.write(plan).settings)
        split, parts = SPLITS.get(known.name, ""), updates // passes
        whole_batch = settings.get(split)
        if isinstance(whole_batch, int):
            settings[split] = whole_batch // parts
        settings |= {PARTS[known.name]: parts} if known.name in PARTS else {}
        settings |= {PASSES[known.name]: passes} if known.name in PASSES else {}
        yield settings | ({"max_steps": steps} if "max_steps" in settings and known.name in ("trl", "swift") else {})


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "diff",
        help="what two configurations train, and what to change so that they train the same",
        description="Compare what two configurations train, of one trainer or of two: n, B_p, rollouts a step, updates a "
        "batch, staleness, learning rate, steps and epochs; and say which settings of B to change so that it trains as "
        "A does. With one configuration, B is the same on other devices (--gpus) or with other settings (--set). Whose "
        "settings a file holds is found out; where it is not clear, say TRAINER:FILE.",
        epilog="isocompute-budget diff old.sh new.sh --problems 8000 · isocompute-budget diff trl:grpo.yaml verl:run.sh "
        "--world-size 8 · isocompute-budget diff run.sh --world-size 8 --gpus 2x · isocompute-budget diff run.sh --set "
        "num_generations=16 · isocompute-budget diff --world-size 8 --gpus 2x -- --num_generations 8 "
        "--per_device_train_batch_size 16",
    )
    parser.add_argument(
        "settings", nargs="+", metavar="A [B]|FLAG", help="files of settings, or the flags of A after --"
    )
    parser.add_argument("--trainer", choices=TRAINERS, help="whose settings they are (default: as they say)")
    parser.add_argument("--gpus", metavar="K|Kx", help="B on so many devices that train: 16, or 2x for twice as many")
    said = "B with another setting of A's, by the trainer's own name"
    parser.add_argument(
        "--set", dest="changed", action="append", default=[], type=assignment, metavar="NAME=VALUE", help=said
    )
    said = "that train, where settings do not say (TRL's are the launcher's)"
    parser.add_argument("--world-size", type=whole, metavar="W", help=said)
    parser.add_argument(
        "--problems", type=whole, metavar="D", help="training problems: steps of epochs, and epochs of steps"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with status 1 where they do not train the same, for CI"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures and the changes")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the figures of both, and what to change."""
    a, b = _sides(arguments)
    for label, one in (("A", a), ("B", b)):
        yield f"{label}  {one.name}, {one.trainer.title}"
    yield ""
    rows = [_row(name, a, b) for name in LABELS if (a.figures[name], b.figures[name]) != (None, None)]
    plainly = all(one.figures["B"] == one.figures["C"] for one in (a, b))
    yield from aligned_table(["", "A", "B", ""], [row for row in rows if not plainly or row[0] != LABELS["B"]])
    yield ""
    different, unknown = (
        differing(a, b, SAME),
        [n for n in SAME if n != "rate" and None in (a.figures[n], b.figures[n])],
    )
    found: list[dict[str, Value]] = []
    if different:
        found = yield from _advice(a, b, different)
    elif unknown:
        yield f"cannot say whether they train the same: {', '.join(LABELS[name] for name in unknown)} is not known of both"
    else:
        longer = [f"{LABELS[name]} differ" for name in differing(a, b, ("steps",))]
        yield "; ".join(["B trains as A does: nothing to change", *longer])
    yield from _remarks(arguments, a, b)
    if arguments.strict and (different or unknown):
        arguments.exit_status = 1
    if arguments.json is not None:
        sides = {
            label: {"name": s.name, "trainer": s.trainer.name, **_document(s)} for label, s in (("A", a), ("B", b))
        }
        write_json({**sides, "different": different, "unknown": unknown, "changes": found}, arguments.json)


def _document(one: Side) -> dict[str, Any]:
    figures = {name: float(v) if isinstance(v, Fraction) else v for name, v in one.figures.items()}
    return {**figures, "remarks": [*one.batching.unknown, *one.batching.inconsistent]}


def _sides(arguments: argparse.Namespace) -> tuple[Side, Side]:
    """The two configurations that the command line names."""
    words: list[str] = arguments.settings
    files = [word for k, word in enumerate(words) if not any("=" in w or w.startswith("-") for w in words[: k + 1])]
    said, more = flags(words[len(files) :]), dict(arguments.changed)
    alone = len(files) < 2
    if len(files) > 2 or (not alone and (said or more)):
        raise BudgetError("diff compares two files, or one configuration before and after --gpus or --set")
    if alone and not more and arguments.gpus is None:
        raise BudgetError("there is one configuration: give another file, --gpus (16 or 2x) or --set NAME=VALUE")
    read = [_read(file, arguments.trainer) for file in files] or [("the flags", said, arguments.trainer)]
    sides = []
    for k, (name, values, given) in enumerate(read):
        values = {**values, **said} if k == 0 else values
        known = trainer(given) if given else trainer_of(values, name)
        sides.append(side(name, known, values, arguments.world_size, arguments.problems))
    first, last = sides[0], sides[-1]
    name, world, values = last.name, arguments.world_size, dict(last.values)
    if more:
        values |= {key: parse_value(value) for key, value in more.items()}
        name = f"{name} with {', '.join(f'{key}={value}' for key, value in more.items())}"
    if arguments.gpus is not None:
        world = _devices(arguments.gpus, last)
        values |= _device_settings(last.trainer, world)
        name = f"{name} on {world:,} devices"
    return first, side(name, last.trainer, values, world, arguments.problems)


def _read(source: str, given: str | None) -> tuple[str, dict[str, Value], str | None]:
    """The settings of a file, and whose they are said to be."""
    before, colon, after = source.partition(":")
    named = bool(colon) and before in TRAINERS
    path = after if named else source
    return path, load(Path(path)), before if named else given


def _devices(text: str, before: Side) -> int:
    """The devices that ``--gpus`` means."""
    match = re.fullmatch(r"([1-9]\d{0,6})(x?)", text)
    if not match:
        raise BudgetError(f"--gpus is {text!r}; it must be a number of devices such as 16, or a factor such as 2x")
    now, number = before.batching.world_size, int(match[1])
    if before.trainer.name == "tinker":
        raise BudgetError("--gpus: devices are the service's, with Tinker")
    if match[2] and now is None:
        raise BudgetError(f"--gpus {text}: how many devices train now is not known; say it with --world-size W")
    return number * (now or 1) if match[2] else number


def _row(name: str, a: Side, b: Side) -> list[object]:
    one, other = a.figures[name], b.figures[name]
    odd = (
        "≠"
        if name not in ("devices", "each") and differing(a, b, [name])
        else "?"
        if None in (one, other) and name in SAME
        else ""
    )
    silent = "not set" if name == "rate" else "unknown"
    return [LABELS[name], *(silent if v is None else _shown(name, v) for v in (one, other)), odd]


def _shown(name: str, value: Fraction | float) -> object:
    if name == "rate":
        return f"{value:.3g}"
    return int(value) if value == int(value) else f"{float(value):,.2f}"


def _advice(a: Side, b: Side, different: Sequence[str]) -> Generator[str, None, list[dict[str, Value]]]:
    """What to change, in words and as settings."""
    yield f"they do not train the same: {', '.join(LABELS[name] for name in different)}"
    found: list[dict[str, Value]] = []
    try:
        found = changes(a, b)
        one_of = "one of these lines" if len(found) > 1 else "this"
        yield from () if found == [{}] else [f"so that B trains as A does, set in B {one_of}:"]
        yield from (f"  {_flags(made, b)}" for made in found if made)
        after = b.having({**b.values, **found[0]})
        for name in differing(a, after, SAME):
            one, other = (_shown(name, side.figures[name] or 0) for side in (a, after))
            yield f"{LABELS[name]} {one} of A and {other} of B: how far each samples ahead is set apart from its batches"
    except BudgetError as error:
        yield f"what to set in B cannot be said: {error}"
    one, other, rate = a.figures["B"], b.figures["B"], a.figures["rate"]
    if one and other and one != other:
        ratio, name = float(other / one), _rate_names(b.trainer)[0]
        scaled = _flags({name: float(f"{rate * sqrt(ratio):.3g}")}, b) if rate else f"{name} × {sqrt(ratio):.3g}"
        cost, each = a.figures["rollouts"], b.figures["C"]
        steps = f", and {int(cost / each):,} steps for as many rollouts" if cost and each else ""
        yield f"or keep its batch of {_shown('B', other)}, {ratio:.3g} times A's, with the rate by the √B rule{steps}:"
        yield f"  {scaled}    (IsoCompute Playbook, arXiv 2603.12151, Factor 3)"
    return found


def _flags(settings: Mapping[str, Value], of: Side) -> str:
    return " ".join(render(Configuration(settings=settings), of.trainer.style))


def _remarks(arguments: argparse.Namespace, a: Side, b: Side) -> Iterable[str]:
    """What the settings contradict or leave open, and what to leave alone."""
    if arguments.gpus is not None:
        left = [
            name.rpartition(".")[2]
            for name in b.values
            if MEMORY.fullmatch(name) and b.trainer.name not in ("trl", "swift")
        ]
        if left:
            yield f"leave alone, of memory and speed only: {', '.join(dict.fromkeys(left))}"
    for kind in ("inconsistent", "unknown"):
        both = [list(getattr(one.batching, kind)) for one in (a, b)]
        for label, own, other in (("A", both[0], both[1]), ("B", both[1], both[0])):
            for remark in own:
                shared = remark in other
                if not shared or label == "A":
                    yield f"{kind}, {'both' if shared else label}: {remark}"
