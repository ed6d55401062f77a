"""Time the dispatch of groups to replicas in virtual time, beside the one before it and the best with known lengths.

    python -m benchmarks.dispatch [--limits 0 512] [--problems 32 256] [--samples 8 16 64] [--replicas 1 2 4 8]
    python -m benchmarks.dispatch --pipeline
    python -m benchmarks.dispatch --vllm

The package's own ``Replicas`` runs over the engines of latency of its tests: a decoding step takes 9 ms and 0.02 ms for
each response that is alive, lengths are lognormal with a median of 1,500 tokens, 8,192 at most. A limit is the most
responses that an engine has alive; 0 is none. For each batch of problems and samples a line says, for each number of
replicas:

* ``old``: wall time (s) of the dispatch up to 0.8.1, whose replicas drained a chunk before they were given another; by
  its rule, which agrees within 0.2 % with that code over the same engines (commit 6c2205e5);
* ``new``: wall time now; then GPU-seconds, replicas × wall time, and the share of them in which engines decoded;
* ``ratio``: to longest-first dispatch of single responses whose lengths are known.

It ends with an error where a ratio is above 1.10 and all responses fit into the replicas. Where they do not, what is
above it is what not knowing lengths costs: a response of 8,192 tokens may begin last, and no dispatch can tell.

A second table is of the pipe in flight beside updates that take as long as sampling a batch: steps per hour of sampling
and updating in turn, and with updates beside sampling, where the batch of a step is begun once that of ``k`` + 1 steps
before is learnt from. It ends with an error where k = 8 has less than 1.7 times the steps of alternation.

With ``--vllm`` two replicas of vLLM on CPU and one engine in this process answer the same problems, also while a
replica is killed, and their tables are compared.
"""

from __future__ import annotations

import argparse
import heapq
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
from isocompute.budget.planning.latency import dispatched
from isocompute.rollout import EngineConfig, Sampling, open_sampler, response_seed
from isocompute.rollout.samplers.replicas.pool import Dispatch
from isocompute.rollout.samplers.sampling import Draw

MOST = 1.10
"""Wall time, as a multiple of that with known lengths."""
STEP, EACH = 9e-3, 2e-5
"""Seconds of a decoding step, and for each response alive."""
DRAW = {"seed": 1, "step": 1}
LAGS = (0, 1, 8)
LEAST_PIPELINED = 1.7
"""Steps of the pipe with the largest lag, as a multiple of those of alternation."""
PIPELINED_STEPS = 40
TICK = 0.5
"""Seconds of decoding after which weights may enter."""


def latency() -> Any:
    """The engines of latency, which are tests' own."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "rollout" / "tests"))
    return import_module("latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A batch with some number of replicas: wall times, and seconds in which engines decoded."""

    old: float
    new: float
    busy: float
    known: float

    @property
    def ratio(self) -> float:
        """Wall time over that with known lengths."""
        return self.new / self.known


def timed(problems: int, samples: int, replicas: int, limit: int) -> Timed:
    """Time a batch.

    Args:
        limit: Most responses alive in an engine.
    """
    engines = latency()
    groups = [
        [
            engines.length_of(response_seed(DRAW["seed"], "train", DRAW["step"], problem, sample), problem, 0.0)
            for sample in range(samples)
        ]
        for problem in engines.problems(problems)["problem_id"]
    ]
    with engines.replicas(replicas, step=STEP, each=EACH, limit=limit) as opened:
        for _ in opened.stream(engines.problems(problems), samples=samples, **DRAW):
            pass
        new, busy = opened.ray.now, sum(actor.inner._sampler.busy for actor in opened.ray.actors)
    known = longest_first([length for group in groups for length in group], replicas, limit)
    return Timed(old=in_chunks(groups, replicas, limit), new=new, busy=busy, known=known)


def alternated(problems: int, samples: int, replicas: int, limit: int) -> float:
    """Return the mean time (s) of sampling a batch, with nothing beside."""
    engines = latency()
    with engines.replicas(replicas, step=STEP, each=EACH, limit=limit) as opened:
        for step in range(1, PIPELINED_STEPS + 1):
            for _ in opened.stream(engines.problems(problems), samples=samples, seed=1, step=step):
                pass
        return float(opened.ray.now) / PIPELINED_STEPS


def pipelined(problems: int, samples: int, replicas: int, limit: int, *, lag: int, update: float) -> float:
    """Return the mean time (s) of a step whose update is computed while the engines sample ahead.

    Args:
        lag: k.
        update: Time of an update (s).
    """
    engines, begun, batches = latency(), 0, {}
    with engines.replicas(replicas, step=STEP, each=EACH, limit=limit, tick=TICK) as opened:
        dispatch, table = Dispatch(opened, in_flight=True), engines.problems(problems)
        for step in range(1, PIPELINED_STEPS + 1):
            while begun < min(PIPELINED_STEPS, step + lag):
                begun += 1
                costs = opened.expected.costs(dict.fromkeys(table["problem_id"], 0), samples)
                draw = Draw(samples=samples, seed=1, step=begun)
                batches[begun] = dispatch.add(costs, table, draw, places=repeat(begun))
            while any(batch is batches[step] for batch, _ in dispatch.missing):
                dispatch.turn()
            learnt = opened.ray.now + update
            while opened.ray.now < learnt:
                if dispatch.missing:
                    dispatch.turn(learnt - opened.ray.now)
                else:
                    opened.ray.now = learnt
            dispatch.pause()
            opened.sync({}, step, in_flight=True)
            dispatch.entered()
        return float(opened.ray.now) / PIPELINED_STEPS


def pipeline_table(limit: int, sizes: Sequence[tuple[int, int, int]]) -> float:
    """Print the steps per hour of several batches and replicas; returns the least gain of the largest lag."""
    lags = "".join(f"{f'k = {lag}':>14}" for lag in LAGS)
    print(f"{f'at most {limit} responses alive in an engine' if limit else 'no limit to the responses alive'}:")
    print(f"problems samples replicas  alternation{lags}   steps per hour, and as a multiple of alternation")
    gains = []
    for size in sizes:
        update = alternated(*size, limit or 2**31)
        before = 1800 / update
        rates = [3600 / pipelined(*size, limit or 2**31, lag=lag, update=update) for lag in LAGS]
        gains.append(rates[-1] / before)
        shown = "".join(f"{rate:>8.1f} {rate / before:>5.2f}" for rate in rates)
        print(f"{size[0]:>8} {size[1]:>7} {size[2]:>8} {before:>12.1f}{shown}", flush=True)
    return min(gains)


def decoded(lengths: Iterable[int], replicas: int, limit: int) -> float:
    """Return when engines have decoded responses, which begin in their order wherever a place is free."""
    return max(STEP * work.steps + EACH * work.tokens for work in dispatched(lengths, replicas=replicas, limit=limit))


def longest_first(lengths: Iterable[int], replicas: int, limit: int) -> float:
    """Return the wall time of a batch whose lengths are known."""
    return decoded(sorted(lengths, reverse=True), replicas, limit)


def in_chunks(groups: Sequence[Sequence[int]], replicas: int, limit: int) -> float:
    """Return the wall time where whoever has drained its chunk gets half its share of the groups that wait."""
    waiting, free = list(groups), [(0.0, replica) for replica in range(replicas)]
    while waiting:
        now, replica = heapq.heappop(free)
        chunk = waiting[: max(1, len(waiting) // (2 * replicas)) if replicas > 1 else None]
        waiting = waiting[len(chunk) :]
        took = decoded([length for group in chunk for length in group], 1, limit)
        heapq.heappush(free, (now + took, replica))
    return max(free)[0]


def table(limit: int, problems: Sequence[int], samples: Sequence[int], replicas: Sequence[int]) -> float:
    """Print the times of all batches; returns the largest ratio where all responses fit into the replicas."""
    print(f"{f'at most {limit} responses alive in an engine' if limit else 'no limit to the responses alive'}:")
    print("problems samples replicas       old       new  GPU-seconds  decoding  ratio")
    ratios: dict[bool, list[float]] = {True: [0.0], False: [0.0]}
    for batch in [(count, each) for count in problems for each in samples]:
        for number in replicas:
            found = timed(*batch, number, limit or 2**31)
            ratios[not limit or batch[0] * batch[1] <= limit * number].append(found.ratio)
            paid = number * found.new
            print(
                f"{batch[0]:>8} {batch[1]:>7} {number:>8} {found.old:>9.1f} {found.new:>9.1f} {paid:>12.0f} "
                f"{found.busy / paid:>9.0%} {found.ratio:>6.3f}",
                flush=True,
            )
    print(f"largest ratio where all responses fit: {max(ratios[True]):.3f}; else {max(ratios[False]):.3f}")
    return max(ratios[True])


def on_vllm() -> None:
    """Compare the tables of two replicas of vLLM with those of one engine."""
    from benchmarks.sampler import problems_table, save_model

    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), hidden=32, layers=1, intermediate=64)
        sampling, engine = Sampling(max_new_tokens=64, max_prompt_tokens=8), EngineConfig(max_concurrent=16)
        two: Any = open_sampler("vllm", folder, sampling, engine=engine, replicas={"replicas": 2})
        one = open_sampler("vllm", folder, sampling, engine=engine)
        problems = problems_table(48)
        for step, dies in enumerate((False, True)):
            groups = []
            before = [member.answered for member in two.actors.members]
            for group in two.stream(problems, samples=4, seed=1, step=step):
                groups.append(group)
                if dies and len(groups) == 1:
                    os.kill(two.actors.members[1].opened.process, signal.SIGKILL)
            found = pa.Table.from_batches(groups).sort_by([("problem_id", "ascending"), ("sample", "ascending")])
            expected = one.sample(problems, samples=4, seed=1, step=step)
            same = expected["response_ids"].to_list() == found["response_ids"].to_pylist()
            apart = max(
                abs(a - b)
                for first, second in zip(expected["logprobs"], found["logprobs"].to_pylist(), strict=True)
                for a, b in zip(first, second, strict=True)
            )
            shares = [member.answered - old for member, old in zip(two.actors.members, before, strict=True)]
            lost = f"; {two.actors.last_lost}" if two.actors.last_lost else ""
            print(
                f"{'a replica killed' if dies else 'both alive'}: {len(found)} responses, {shares} groups of each, "
                f"tokens {'equal' if same else 'DIFFERENT'}, log-probabilities {apart:.1e} apart{lost}",
                flush=True,
            )
            if not same:
                raise SystemExit("the tables differ")
        two.close()
        one.close()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("limits", [0, 512]),
        ("problems", [32, 64, 128, 256]),
        ("samples", [8, 16, 32, 64]),
        ("replicas", [1, 2, 4, 8]),
    ):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--pipeline", action="store_true", help="only the table of the pipe in flight")
    arguments = parser.parse_args()
    if arguments.vllm:
        on_vllm()
        return
    sizes = [(64, 16, 1), (64, 16, 4), (256, 16, 4)]
    least = min(pipeline_table(limit, sizes) for limit in arguments.limits)
    if least < LEAST_PIPELINED:
        raise SystemExit(
            f"a lag of {LAGS[-1]} has {least:.2f} times the steps of alternation; {LEAST_PIPELINED:g} at least"
        )
    if arguments.pipeline:
        return
    grid = (arguments.problems, arguments.samples, arguments.replicas)
    most = max(table(limit, *grid) for limit in arguments.limits)
    if most > MOST:
        raise SystemExit(f"the wall time is {most:.3f} of that with known lengths, and may be {MOST:g}")


if __name__ == "__main__":
    main()
