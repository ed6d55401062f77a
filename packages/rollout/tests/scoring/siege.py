"""Attacks put through a verifier, among right and wrong responses; returns what they broke."""

import concurrent.futures
import contextlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from isocompute.rollout import ReasoningGymSource, RolloutError
from isocompute.rollout.problems.loading import candidates
from isocompute.rollout.scoring.rules import rule
from isocompute.rollout.scoring.scorer import Item, Scorer, Verdict
from scoring.attacks import Attack
from scoring.meter import Meter, Taken
from scoring.outside import SECRET, Outside

MODULE = '''
def executes(response, answer, metadata):
    """Execute the response here, and compare what it calls the answer."""
    scope = {}
    exec(response, scope)
    found = scope.get("answer")
    return type(found) is str and found == answer


def starts(response, answer, metadata):
    """Execute the response in a process of its own, and compare what it prints."""
    import subprocess, sys

    done = subprocess.run([sys.executable, "-c", response], capture_output=True, text=True)
    return done.stdout.strip() == answer
'''
"""A module of verifiers, ``own_verifiers``."""
START_SECONDS = 30.0
"""How long a lost worker's replacement may take to start, besides a deadline, on a machine with much to do."""
TOLERATED = Taken(bytes=2**28, seconds=0.5)
"""What a response may take over its limits where now and then is looked what it takes."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A verifier with a problem of its own.

    Attributes:
        item: The problem, with a right response.
        wins: What a program must call its answer.
        more: What follows an attack; ``None`` where the verifier executes nothing.
        own: A response may earn its own reward by what it writes.
    """

    item: Item
    wrong: str
    wins: str = ""
    more: str | None = None
    own: bool = False

    def neighbours(self) -> list[Item]:
        """A right and a wrong response that were not scored before."""
        number = next(_numbers)
        mark = " " * (number % 200 + 1) if self.more is None else f"  # {number}"
        return [replace(self.item, response=text + mark) for text in (self.item.response, self.wrong)]


def text_target(verifier: str, answer: str, metadata: str = "") -> Target:
    """A verifier that executes nothing."""
    right = rule(verifier).written(answer)
    return Target(item=Item(verifier=verifier, response=right, answer=answer, metadata=metadata), wrong="no answer")


def task_target(task: str) -> Target:
    """A task of reasoning-gym."""
    problem = next(iter(candidates(ReasoningGymSource(task=task, train=1, validation=1, seed=5))))
    return text_target(problem.verifier, problem.answer, problem.metadata)


def program_targets() -> dict[str, Target]:
    """The verifiers that execute responses."""
    item = Item(verifier="python:own_verifiers:executes", response=f"answer = {SECRET!r}", answer=SECRET)
    printed = replace(item, verifier="python:own_verifiers:starts", response=f"print({SECRET!r})")
    tests = json.dumps([{"input": "3 4\n", "output": "7"}, {"input": "", "output": SECRET}])
    program = f"import sys\nline = sys.stdin.readline()\nprint(sum(map(int, line.split())) if line else {SECRET!r})"
    return {
        "executes": Target(item=item, wrong="answer = '0'", wins=SECRET, more="", own=True),
        "starts": Target(item=printed, wrong="print(0)", wins=SECRET, more="\nprint(answer)"),
        "runs": Target(
            item=Item(verifier="runs", response=program, answer=tests),
            wrong="print(0)",
            wins=SECRET,
            more="\nimport sys\nprint(7 if sys.stdin.read() else answer)",
        ),
    }


def besiege(
    scorer: Scorer, target: Target, attacks: Sequence[Attack], outside: Outside, meter: Meter | None = None
) -> list[str]:
    """Score attacks in one batch, right and wrong responses before, between and after, and another batch.

    Args:
        meter: Measures one attack; what it took over its limits is then in ``over``.
    """
    broken = list(_wrong("the batch before", _verdicts(scorer, target.neighbours())))
    before = outside.state()
    batch, places = target.neighbours(), {}
    for attack in attacks:
        for shape in _shapes(target, attack):
            text = shape.format(outside.text(attack, target.wins, number=next(_numbers)))
            places[len(batch)] = attack
            batch.append(replace(target.item, response=text))
        batch += target.neighbours()
    exempt = [i for i, attack in places.items() if attack.own and target.own]
    with meter.measured() if meter else contextlib.nullcontext(Taken()) as taken:
        broken += _wrong("the batch", _verdicts(scorer, batch), exempt, places)
    start = time.monotonic()
    broken += _wrong("the next batch", _verdicts(scorer, target.neighbours()))
    if meter is not None:
        # Right and wrong responses come again, and those whose score is known.
        with meter.measured() as usual:
            _verdicts(scorer, target.neighbours() + target.neighbours())
        made = len(places)
        meter.over = Taken(
            bytes=max(0, taken.bytes - scorer.config.memory_bytes),
            seconds=max(0.0, taken.seconds - usual.seconds - made * scorer.config.seconds) / made,
        )
        if meter.over.bytes > TOLERATED.bytes:
            broken.append(f"held {meter.over.bytes >> 20} MiB over its limit")
        if meter.over.seconds > TOLERATED.seconds:
            broken.append(f"took {meter.over.seconds:.2f} s over its limit")
    if time.monotonic() - start > scorer.config.wall_seconds + START_SECONDS:
        broken.append("its worker was lost for longer than a deadline")
    return broken + outside.changes(before)


def _shapes(target: Target, attack: Attack) -> list[str]:
    """How often an attack is made; within what scorers look for, where nothing executes it."""
    if target.more is None:
        return ["{}"] if attack.kind == "parsers" else ["{}", "[{}]", "1+{}"]
    return ["{}" + target.more] * (1 + attack.twice)


def _verdicts(scorer: Scorer, batch: Sequence[Item]) -> list[Verdict] | str:
    limit = len(batch) * scorer.config.wall_seconds + START_SECONDS * 4
    try:
        return list(scorer.submit(batch).result(timeout=limit))
    except RolloutError as error:
        return f"raised: {error}"
    except concurrent.futures.TimeoutError:
        return f"was not scored within {limit:g} s"


def _wrong(
    name: str, verdicts: list[Verdict] | str, exempt: Sequence[int] = (), places: Mapping[int, Attack] | None = None
) -> Iterator[str]:
    if isinstance(verdicts, str):
        yield f"{name} {verdicts}"
        return
    neighbours = itertools.cycle((1.0, 0.0))
    for i, verdict in enumerate(verdicts):
        if SECRET in str(verdict.error):
            yield f"{name}: a response said {verdict.error!r}"
        if places and i in places:
            if verdict.reward and i not in exempt:
                yield f"{places[i].name!r} earned {verdict.reward}"
        elif verdict.reward != (expected := next(neighbours)):
            yield f"{name}: a {'right' if expected else 'wrong'} response got {verdict.reward} ({verdict.error})"
