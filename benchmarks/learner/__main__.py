"""Time a step of training: beside TRL, with groups that teach nothing, in arithmetic, in tokens and over time.

    python -m benchmarks.learner [--trl PYTHON] [--size 0.9M] [--samples 16 64] [--new-tokens 16 64] [--blocks 6]
    python -m benchmarks.learner --skip [--samples 16 64] [--new-tokens 16 64] [--blocks 6]
    python -m benchmarks.learner --rate | --linear | --flat
    python -m benchmarks.learner --cuda [--trl PYTHON] [--blocks 6] | --update | --engine | --agreement | --largest

Without an option whole steps (sampling as ``sampler: auto`` chooses, update, sync) of a Llama of random weights are
timed: 8 problems a batch, coin flips for rewards, temperature 1, no KL, float32, one thread. TRL takes the same steps
in a process of its own, with the interpreter PYTHON of an environment that has trl==1.16.*: the same model, prompts,
coin flips, learning rate and warm-up, generation as TRL does it on CPU. It runs twice, with its own default of
computing activations again in the backward pass, and without. Blocks are interleaved, first in one order, then in the
other; time is in CPU-seconds of each process and its children.

With ``--skip`` 90 % of the groups have equal rewards, and whole steps are compared with sampling alone. ``--rate``
gives the arithmetic of an update per second as a share of a matrix product's, ``--linear`` the cost of a token in
updates of up to 16,384 recorded responses, ``--flat`` the memory of the process over 1,000 steps. Each prints a table
and ends with an error where it misses its criterion. Beside TRL these are the lower ends of the intervals of both
ratios of speeds, equal shares of groups of equal rewards, and mean lengths within 2 % of each other.

The last five need a GPU, and ``--largest`` is unverified: whole steps of 0.5 billion parameters, n = 64
and 512 new tokens, beside TRL with vLLM; the update of such a step alone; vLLM beside a learner; a sampler's
log-probabilities beside the learner's; and the largest model that trains, by prediction and by trying.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from benchmarks.sampler import SIZES
from experiments.errors import ExperimentError


def main() -> int:
    """Run the benchmark; an error a user can act on is one line and exit code 2, a criterion that is missed is 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    for name, help_text in (
        ("skip", "90 %% of groups with equal rewards: whole steps over sampling alone"),
        ("rate", "an update's share of the rate of a matrix product"),
        ("linear", "cost of a token in small and large updates"),
        ("flat", "memory over 1,000 steps"),
        ("cuda", "0.5 billion parameters beside TRL with vLLM on a GPU"),
        ("update", "an update of 0.5 billion parameters alone, on a GPU"),
        ("engine", "vLLM beside a learner of 0.5 billion parameters, on a GPU"),
        ("agreement", "a sampler's log-probabilities beside the learner's, on a GPU"),
        ("largest", "the largest model that trains on this GPU, predicted and tried (unverified)"),
    ):
        what.add_argument(f"--{name}", action="store_true", help=help_text)
    parser.add_argument("--trl", type=Path, help="an interpreter with trl==1.16.*")
    parser.add_argument("--size", choices=SIZES, default="0.9M", help="parameters of the model beside TRL")
    parser.add_argument("--samples", type=int, nargs="+", default=[16, 64], help="responses per problem")
    parser.add_argument("--new-tokens", type=int, nargs="+", default=[16, 64], help="most tokens of a response")
    parser.add_argument("--blocks", type=int, default=6, help="blocks of each way")
    parser.add_argument("--largest-one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    try:
        check(asked)
        missed = _run(asked)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if missed:
        print("; ".join(missed), file=sys.stderr)
    return 1 if missed else 0


def check(asked: argparse.Namespace) -> None:
    """Refuse what cannot be run, before anything is.

    Args:
        asked: The command's options.

    Raises:
        ExperimentError: A count is too small, ``--trl`` names nothing that can be run, or there is no GPU.
    """
    for name, found, least in (
        ("blocks", asked.blocks, 1),
        ("samples", min(asked.samples), 2),
        ("new-tokens", min(asked.new_tokens), 1),
    ):
        if found < least:
            raise ExperimentError(f"--{name} is {found}; it must be at least {least}")
    if asked.trl is not None and shutil.which(asked.trl) is None:
        raise ExperimentError(f"--trl is {asked.trl}, which cannot be run; it must be an interpreter with trl==1.16.*")
    if _needs_gpu(asked):
        import torch

        if not torch.cuda.is_available():
            name = _needs_gpu(asked)
            raise ExperimentError(f"--{name} needs a GPU, and PyTorch {torch.__version__} finds none")


def _needs_gpu(asked: argparse.Namespace) -> str:
    """The option that needs a GPU; empty if there is none."""
    names = ("cuda", "update", "engine", "agreement", "largest")
    return next((name for name in names if getattr(asked, name)), "largest" if asked.largest_one else "")


def _run(asked: argparse.Namespace) -> list[str]:
    """Run what is asked for; each part loads what it needs and nothing else."""
    if asked.skip:
        from .skip import skip

        return skip(samples=asked.samples, new_tokens=asked.new_tokens, blocks=asked.blocks)
    if asked.rate:
        from .rate import rate

        return rate()
    if asked.linear or asked.flat:
        import torch

        from .growth import flat, linear

        torch.set_num_threads(1)
        return linear() if asked.linear else flat()
    if _needs_gpu(asked):
        return _on_cuda(asked)
    from .compare import compare

    return compare(
        size=asked.size, samples=asked.samples, new_tokens=asked.new_tokens, blocks=asked.blocks, python=asked.trl
    )


def _on_cuda(asked: argparse.Namespace) -> list[str]:
    from . import cuda

    if asked.largest_one:
        cuda.one_size(asked.largest_one)
        return []
    for name, run in (
        ("update", cuda.update),
        ("engine", cuda.engine),
        ("agreement", cuda.agreement),
        ("largest", cuda.largest),
    ):
        if getattr(asked, name):
            return run()
    return cuda.beside(python=asked.trl, blocks=asked.blocks)


if __name__ == "__main__":
    sys.exit(main())
