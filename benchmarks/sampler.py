"""Time the vLLM sampler beside bare vLLM, interleaved in one run; and tables of long responses within 8 GiB.

    python -m benchmarks.sampler [--blocks 3] [--counts 128 1024 8192] [--rows 65536]
    python -m benchmarks.sampler --cuda Qwen2.5-0.5B Qwen2.5-7B

On CPU each block answers the same requests three times in turn, with one engine: by ``LLM.generate``, by the sampler
without scoring, and by the sampler with reasoning-gym's scoring in the sandbox. Seeds are the same, so tokens are, too;
every block has seeds of its own, so that no verdict of an earlier one is known. Times are CPU-seconds of this process
and its children, the sandbox included; the engine has one thread, as in the embedded default, since threads that spin
while they wait would be counted as well. Then recorded responses of 512 tokens go through the sampler's tables to
Parquet and back, in a process of its own whose peak memory is printed. It ends with an error where the sampler has
less than 0.9 of the speed of bare vLLM, scoring adds more than 5 %, or the tables take more memory than they may.

With ``--cuda`` the profile for CUDA answers with models of random weights that have the named models' shapes, next to
bare vLLM with its own defaults, in tokens per second, and syncs are timed. Both engines take 0.6 of the GPU, which
leaves room for the learner's copy of the weights.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import permutations
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from isocompute.rollout import EngineConfig, Prompting, Sampling, open_sampler
from isocompute.rollout.samplers.local import LocalSampler
from isocompute.rollout.samplers.sampling import Continue, Finished, Request, Response, response_seed
from isocompute.rollout.scoring.scorer import Item, Scorer, Verdict

SAMPLES = 16
NEW_TOKENS = 12
LONG = 512
MOST_GIB = 8.0
LEAST_SPEED = 0.9
"""Speed of the sampler without scoring, as a share of bare vLLM's."""
MOST_SCORING = 1.05
"""CPU time with scoring, as a multiple of that without."""
GPU_SHARE = 0.6
BASE = Path(__file__).parents[1] / "experiments" / "inputs" / "smoke" / "base"
"""A tiny model that adds, with one token for each character."""
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-7B": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
}
"""Of published models; their weights and tokenizers are not needed."""


SIZES = {
    "0.1M": {"hidden": 64, "layers": 2, "intermediate": 192},
    "0.9M": {"hidden": 128, "layers": 4, "intermediate": 368},
    "3M": {"hidden": 256, "layers": 4, "intermediate": 640},
    "5M": {"hidden": 320, "layers": 4, "intermediate": 896},
    "11M": {"hidden": 384, "layers": 6, "intermediate": 1024},
    "21M": {"hidden": 512, "layers": 8, "intermediate": 1056},
}
"""Arguments of ``save_model`` for Llamas of as many parameters."""


class NoScoring(Scorer):
    """Gives 0 to every response."""

    def submit(self, items: Sequence[Item], *, hold: bool = False) -> Future[list[Verdict]]:
        """Return verdicts at once."""
        del hold
        future: Future[list[Verdict]] = Future()
        future.set_result([Verdict(reward=0.0)] * len(items))
        return future


class Recorded(LocalSampler):
    """Hands out responses that were recorded, group by group, as an engine would."""

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        del control
        generator = np.random.default_rng(0)
        for index in range(len(requests)):
            ids = generator.integers(2, 12, LONG, dtype=np.int32)
            logprobs = generator.standard_normal(LONG, dtype=np.float32)
            yield index, Response(ids=ids, logprobs=logprobs, finish_reason="length")


def problems_table(count: int) -> pl.DataFrame:
    """Sums to be answered by a model that cannot add."""
    return pl.DataFrame(
        {
            "problem_id": [f"p{i:05d}" for i in range(count)],
            "prompt": [f"{1 + i % 9}+{1 + i // 9 % 9}=" for i in range(count)],
            "answer": [str(2 + i % 9 + i // 9 % 9) for i in range(count)],
            "verifier": "reasoning_gym:chain_sum",
            "source": "benchmark",
            "split": "train",
        }
    )


def character_tokenizer() -> Any:
    """The tokenizer of ``BASE``: digits, signs, padding and the end."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(BASE)


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save a model with a tokenizer, and nothing of generation but the stop token."""
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.copy(BASE / "generation_config.json", folder)


def save_model(folder: Path, *, hidden: int = 128, layers: int = 4, intermediate: int = 368) -> None:
    """Save a Llama with random weights: 0.85 million parameters by default."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = character_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        max_position_embeddings=2 * LONG,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.05,
    )
    save_policy(LlamaForCausalLM(config), tokenizer, folder)


def cpu_seconds() -> float:
    """CPU-seconds of this process, its living descendants and the children that have ended."""
    own, tick = os.times(), os.sysconf("SC_CLK_TCK")
    total = own.user + own.system + own.children_user + own.children_system
    parents: dict[int, tuple[int, int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(file.parent.name)] = (int(fields[1]), sum(int(value) for value in fields[11:15]))
    for process, (_, ticks) in parents.items():
        ancestor = process
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor][0]
        total += ticks / tick if ancestor == os.getpid() and process != os.getpid() else 0.0
    return total


def timed(work: Callable[[], Any], clock: Callable[[], float] = cpu_seconds) -> float:
    """Seconds that work takes by a clock."""
    began = clock()
    work()
    return clock() - began


def bare(sampler: Any, problems: pl.DataFrame, sampling: Sampling) -> Callable[[int], Any]:
    """Return what asks vLLM itself for the same responses of a step, with the same seeds and log-probabilities."""
    from vllm import SamplingParams

    def work(step: int) -> Any:
        prompts, params = [], []
        for problem, text in problems.select("problem_id", "prompt").rows():
            ids = sampler.tokenizer(text, add_special_tokens=False)["input_ids"]
            for sample in range(SAMPLES):
                prompts.append({"prompt_token_ids": ids})
                seed = response_seed(1, "train", step, problem, sample)
                params.append(
                    SamplingParams(
                        temperature=sampling.temperature,
                        max_tokens=sampling.max_new_tokens,
                        seed=seed,
                        logprobs=0,
                        detokenize=False,
                        stop_token_ids=sampler.stop_token_ids,
                    )
                )
        return sampler._llm.generate(prompts, params, use_tqdm=False)

    return work


def compare(folder: Path, counts: Sequence[int], blocks: int) -> list[str]:
    """Print the three times and their ratios; return what is slower than it may be."""
    import torch

    slow: list[str] = []
    if not counts:
        return slow
    torch.set_num_threads(1)
    sampling = Sampling(max_new_tokens=NEW_TOKENS, max_prompt_tokens=8)
    sampler: Any = open_sampler("vllm", str(folder), sampling)
    scoring, silent = sampler.scorer, NoScoring()
    for count in counts:
        problems = problems_table(count // SAMPLES)

        def ours(scorer: Scorer, table: pl.DataFrame = problems) -> Callable[[int], Any]:
            def work(step: int) -> Any:
                sampler.scorer = scorer
                return sampler.sample(table, samples=SAMPLES, seed=1, step=step)

            return work

        ways = {"bare": bare(sampler, problems, sampling), "unscored": ours(silent), "scored": ours(scoring)}
        for warm_up in ways.values():
            warm_up(0)
        expected = [list(output.outputs[0].token_ids) for output in ways["bare"](0)]
        if ways["scored"](0)["response_ids"].to_list() != expected:
            raise SystemExit("the sampler and bare vLLM gave different tokens")
        repeats = max(1, 1024 // count)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for block in range(blocks * repeats):
            # No way always follows the same other, whose garbage it would collect.
            order = list(permutations(ways))[block % 6]
            for name in order:
                gc.collect()
                times[name].append(timed(partial(ways[name], block + 1)))
        mean = {name: statistics.mean(values) for name, values in times.items()}
        each = ", ".join(f"{name} {value / count * 1e3:.3f} ms" for name, value in mean.items())
        print(
            f"{count} responses: {each} of CPU per response; speed of the sampler over bare vLLM: "
            f"{mean['bare'] / mean['unscored']:.2f} unscored, {mean['bare'] / mean['scored']:.2f} scored; scoring adds "
            f"{(mean['scored'] / mean['unscored'] - 1) * 100:+.1f} %",
            flush=True,
        )
        if mean["bare"] / mean["unscored"] < LEAST_SPEED:
            slow.append(f"with {count} responses the sampler has less than {LEAST_SPEED:g} of the speed of bare vLLM")
        if mean["scored"] / mean["unscored"] > MOST_SCORING:
            slow.append(f"with {count} responses scoring takes more than {MOST_SCORING:g} times the CPU time")
    sampler.close()
    return slow


def table_of_long_responses(folder: Path, rows: int) -> None:
    """Pass recorded responses to Parquet, a row group per group, and back; print sizes, times and the peak memory."""
    sampler = Recorded(folder, Sampling(max_new_tokens=LONG, max_prompt_tokens=8), scorer=NoScoring())
    file, began = folder / "rollouts.parquet", perf_counter()
    writer = None
    for group in sampler.stream(problems_table(rows // SAMPLES), samples=SAMPLES, seed=1, step=0):
        writer = writer or pq.ParquetWriter(file, group.schema)
        writer.write_batch(group)
    assert writer is not None
    writer.close()
    written = perf_counter() - began
    back = pl.read_parquet(file)
    read = perf_counter() - began - written
    whole = sampler.sample(problems_table(rows // SAMPLES), samples=SAMPLES, seed=1, step=0)
    assert back.equals(whole)
    tokens = int(back["response_ids"].list.len().sum())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{len(back)} responses of {LONG} tokens ({tokens / 1e6:.1f} million): written group by group in "
        f"{written:.1f} s, {file.stat().st_size / 2**20:.0f} MiB of Parquet, read back in {read:.1f} s, equal to the "
        f"whole table in memory; peak memory, both tables included, {memory:.2f} GiB of {MOST_GIB:g}",
        flush=True,
    )
    if memory > MOST_GIB:
        raise SystemExit("the tables took more memory than they may")


def on_cpu(counts: Sequence[int], blocks: int, rows: int) -> None:
    """Print all comparisons, then end with an error where something is slower than it may be."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder)
        slow = compare(folder, counts, blocks)
        if rows:
            tables = ["--tables-only", name, "--rows", str(rows)]
            subprocess.run([sys.executable, "-m", "benchmarks.sampler", *tables], check=True)
    if slow:
        raise SystemExit("; ".join(slow))


def on_cuda(names: Sequence[str], rounds: int) -> None:
    """Print tokens per second of the CUDA profile and of bare vLLM, and the time of a sync, with random weights."""
    for name in names:
        for way in ("bare", "sampler"):
            # An engine at a time: each takes most of the GPU's memory.
            subprocess.run([sys.executable, "-m", __spec__.name, "--cuda-one", name, way, str(rounds)], check=True)


def one_on_cuda(name: str, way: str, rounds: int) -> None:
    """Time one engine on CUDA."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = Qwen2Config(**SHAPES[name], bos_token_id=None, eos_token_id=1, pad_token_id=0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        save_policy(model, character_tokenizer(), Path(folder))
        sampling = Sampling(max_new_tokens=LONG, max_prompt_tokens=LONG)
        problems = problems_table(64)
        if way == "bare":
            from vllm import LLM, SamplingParams

            engine = LLM(
                model=folder,
                max_model_len=2 * LONG,
                logprobs_mode="processed_logprobs",
                seed=0,
                gpu_memory_utilization=GPU_SHARE,
            )
            prompts = [prompt for prompt in problems["prompt"] for _ in range(SAMPLES)]
            # Most sampled tokens are none of the small tokenizer's.
            params = [
                SamplingParams(max_tokens=LONG, seed=i, logprobs=0, detokenize=False) for i in range(len(prompts))
            ]

            def work() -> int:
                return sum(len(o.outputs[0].token_ids) for o in engine.generate(prompts, params, use_tqdm=False))
        else:
            share, plain = EngineConfig(memory_share=GPU_SHARE), Prompting(template="plain")
            sampler = open_sampler("vllm", folder, sampling, engine=share, prompting=plain)
            print(sampler.plan)

            def work() -> int:
                answered = sampler.sample(problems, samples=SAMPLES, seed=1, step=0)
                return int(answered["response_ids"].list.len().sum())

        work()
        speeds = [work() / seconds for seconds in _each(work, rounds)]
        print(f"{name}, {way}: {statistics.median(speeds):.0f} tokens/s", flush=True)
        if way == "sampler":
            weights = {key: value.to("cuda") for key, value in model.state_dict().items()}
            syncs = [timed(lambda v=v: sampler.sync(weights, v), perf_counter) for v in range(1, rounds + 1)]  # type: ignore[misc]
            print(f"{name}: a sync takes {statistics.median(syncs):.2f} s", flush=True)


def _each(work: Callable[[], Any], rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        yield timed(work, perf_counter)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="*", default=[128, 1024, 8192])
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--cuda", nargs="+", choices=SHAPES, help="compare on CUDA, with the shapes of these models")
    parser.add_argument("--cuda-one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--tables-only", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cuda_one:
        name, way, rounds = arguments.cuda_one
        one_on_cuda(name, way, int(rounds))
    elif arguments.cuda:
        on_cuda(arguments.cuda, arguments.blocks)
    elif arguments.tables_only:
        table_of_long_responses(arguments.tables_only, arguments.rows)
    else:
        on_cpu(arguments.counts, arguments.blocks, arguments.rows)


if __name__ == "__main__":
    main()
