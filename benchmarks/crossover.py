"""Time both samplers on a CPU, interleaved, on models of 0.1 to 21 million parameters: which costs less, and where?

    python -m benchmarks.crossover [--blocks 3] [--sizes 0.1M 5M] [--tokens 24 256] [--whole]

The rule of ``resources.sampler: auto`` rests on it (``isocompute.rollout.samplers.registry``). Weights are random. For
each size a process opens both engines, and each block takes the same step with one after the other, in alternating
order: a sync of weights, then 8 problems answered n times by each. Responses are not scored. Printed are CPU-ms of a
rollout, the sync included: the mean over blocks, after a block that warms up.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from isocompute.rollout import EngineConfig, Prompting, Sampling, open_sampler
from isocompute.rollout.samplers.weights import stored_parameters

from .engines import weights_of
from .sampler import SIZES, NoScoring, problems_table, save_model, timed

PROBLEMS, GROUPS = 8, (2, 8, 32)
"""B_p, and every n."""
KINDS = ("vllm", "transformers")


def opened(kind: str, folder: Path, tokens: int) -> Any:
    """A sampler that scores nothing."""
    options: dict[str, Any] = {"prompting": Prompting(template="plain"), "scorer": NoScoring()}
    if kind == "vllm":
        options |= {"engine": EngineConfig(profile="cpu"), "responses": PROBLEMS * max(GROUPS)}
    return open_sampler(kind, str(folder), Sampling(max_new_tokens=tokens, max_prompt_tokens=8), **options)


def _going_on(params: Any) -> Any:
    params.ignore_eos, params.stop_token_ids = True, []
    return params


def compare(size: str, tokens: int, blocks: int, *, whole: bool) -> None:
    """Print a row for each n.

    Args:
        whole: Whether no token ends a response.
    """
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder, **SIZES[size])
        samplers = {kind: opened(kind, folder, tokens) for kind in KINDS}
        if whole:
            from isocompute.rollout.samplers.vllm import sampler as module

            params = module._params
            module._params = lambda *given: _going_on(params(*given))
            samplers["transformers"]._ends = []
        weights, problems = weights_of(folder), problems_table(PROBLEMS)
        for n in GROUPS:
            # A small batch is repeated: a clock of processes ticks a hundred times a second.
            repeats = max(1, 64 * 24 // (n * tokens))

            def steps(kind: str, block: int, n: int = n, repeats: int = repeats) -> int:
                found = 0
                for step in range(block * repeats, (block + 1) * repeats):
                    samplers[kind].sync(weights, step)
                    found += len(samplers[kind].sample(problems, samples=n, seed=1, step=step))
                return found

            taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for block in range(blocks + 1):
                for kind in KINDS[:: 1 if block % 2 else -1]:
                    gc.collect()
                    seconds = timed(lambda kind=kind, block=block: steps(kind, block))  # type: ignore[misc]
                    if block:
                        taken[kind].append(seconds)
            per = {kind: statistics.mean(each) / (repeats * n * PROBLEMS) * 1e3 for kind, each in taken.items()}
            row = [size, f"{stored_parameters(folder):,}", tokens, n, *(f"{per[kind]:.2f}" for kind in KINDS)]
            print("| " + " | ".join(map(str, [*row, f"{per['vllm'] / per['transformers']:.2f}"])) + " |", flush=True)


def main() -> None:
    """Print the table, each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--tokens", nargs="+", type=int, default=[24])
    parser.add_argument("--whole", action="store_true", help="no response ends before its last token")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        compare(arguments.sizes[0], arguments.tokens[0], arguments.blocks, whole=arguments.whole)
        return
    print("| size | parameters | new tokens | n | vLLM, ms | transformers, ms | vLLM : transformers |")
    print("|" + "---|" * 7, flush=True)
    for tokens in arguments.tokens:
        for size in arguments.sizes:
            asked = ["--alone", "--sizes", size, "--tokens", str(tokens), "--blocks", str(arguments.blocks)]
            asked += ["--whole"] * arguments.whole
            subprocess.run([sys.executable, "-m", __spec__.name, *asked], check=True)


if __name__ == "__main__":
    main()
