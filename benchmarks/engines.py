"""Time engines: to get weights, to sleep and to wake, and with a seed for each response.

    python -m benchmarks.engines [--model SHAPE] [--syncs 5] [--responses 512]

Without a GPU a model of 26 million parameters in float32 is synced over the object store, gloo and shared memory, and
seeds are measured in CPU-seconds. With GPUs a model of a published one's shape is synced in bfloat16, over NCCL where
there are two; an engine that shares a GPU with the weights takes 0.4 of it. Weights are random. Each engine is in a
process of its own. Every figure is a median, but that of a first sync, in which groups and buffers are made.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from isocompute.rollout import EngineConfig, Prompting, RolloutError, Sampling, open_sampler

from benchmarks.sampler import (
    LONG,
    SHAPES,
    character_tokenizer,
    cpu_seconds,
    problems_table,
    save_model,
    save_policy,
    timed,
)

SMALL = "26M"
SHARE = 0.4
"""Share of a GPU that an engine takes beside the weights."""
PROMPT_TOKENS = 8


def save(name: str, folder: Path) -> None:
    """Save a model of random weights."""
    if name == SMALL:
        save_model(folder, hidden=512, layers=8, intermediate=1408)
        return
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[name], bos_token_id=None, eos_token_id=1, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    save_policy(model, character_tokenizer(), folder)


def weights_of(folder: Path) -> dict[str, Any]:
    """The weights of a saved model, where a learner would have them."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return {
        name: tensor.detach().to("cuda" if torch.cuda.is_available() else "cpu")
        for name, tensor in model.state_dict().items()
    }


def opened(folder: Path, *, new_tokens: int, sleep: int = 0, replicas: dict[str, Any] | None = None) -> Any:
    """An engine."""
    import torch

    share = SHARE if torch.cuda.is_available() else None
    return open_sampler(
        "vllm",
        str(folder),
        Sampling(max_new_tokens=new_tokens, max_prompt_tokens=PROMPT_TOKENS),
        replicas=replicas,
        prompting=Prompting(template="plain"),
        engine=EngineConfig(memory_share=share, sleep=sleep),
    )


def row(*cells: object) -> None:
    """Print a row of the table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def syncs(folder: Path, way: str, count: int) -> None:
    """Print what syncs take over one way."""
    import torch

    gpus = torch.cuda.device_count()
    if way == "nccl" and gpus < 2:
        row(f"sync over {way}", f"not measured: it needs 2 GPUs, and there are {gpus}", "")
        return
    if way == "nccl":
        # Ray gives the engine the first one, and two ranks of NCCL cannot be on one GPU.
        torch.cuda.set_device(gpus - 1)
    # A whole GPU for what has one of its own, a part of the one that has the weights for what shares it.
    share = 0.0 if not gpus else 1.0 if way == "nccl" else 0.5
    pool = {"replicas": 1, "transport": way, "num_gpus": share}
    weights = weights_of(folder)
    sampler = opened(folder, new_tokens=8, replicas=None if way == "in process" else pool)
    sync = partial(sampler.sync, weights)
    first, *others = [timed(partial(sync, version), perf_counter) for version in range(1, count + 2)]
    gigabytes = sum(tensor.nbytes for tensor in {t.data_ptr(): t for t in weights.values()}.values()) / 1e9
    each = statistics.median(others)
    row(
        f"sync {way if way == 'in process' else f'over {way}'} of {gigabytes:.2f} GB",
        f"{each:.3f} s",
        f"first {first:.3f} s, {gigabytes / each:.2f} GB/s",
    )
    sampler.close()


def naps(folder: Path, level: int, count: int) -> None:
    """Print what sleeping and waking take at one level."""
    import torch

    try:
        sampler = opened(folder, new_tokens=8, sleep=level)
    except RolloutError as error:
        row(f"sleep at level {level}", f"not measured: {error}", "")
        return
    weights = weights_of(folder)
    asleep, awake, freed = [], [], 0.0
    for version in range(1, count + 1):
        before = torch.cuda.mem_get_info()[0]
        asleep.append(timed(sampler.sleep, perf_counter))
        freed = (torch.cuda.mem_get_info()[0] - before) / 2**30
        # At level 1 a response would wake it; either way the next step begins with a sync.
        awake.append(timed(partial(sampler.sync, weights, version), perf_counter))
    row(f"sleep at level {level}", f"{statistics.median(asleep):.3f} s", f"frees {freed:.1f} GiB")
    row(f"wake and sync from level {level}", f"{statistics.median(awake):.3f} s", "")
    sampler.close()


def seeds(folder: Path, responses: int, rounds: int) -> None:
    """Print what a seed for each response costs, against unseeded sampling by the same engine, interleaved."""
    import torch
    from vllm import SamplingParams

    gpus = torch.cuda.is_available()
    new_tokens = LONG if gpus else 32
    sampler = opened(folder, new_tokens=new_tokens)
    prompts = [sampler.tokenizer(text)["input_ids"] for text in problems_table(responses)["prompt"]]

    def ways(*, seeded: bool) -> Callable[[], Any]:
        fixed = {"max_tokens": new_tokens, "ignore_eos": True, "logprobs": 0, "detokenize": False}
        params = [SamplingParams(seed=i if seeded else None, **fixed) for i in range(responses)]
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return lambda: sampler._llm.generate(asked, params, use_tqdm=False)

    times: dict[bool, list[float]] = {True: [], False: []}
    for block in range(rounds + 1):
        for seeded in (True, False) if block % 2 else (False, True):
            took = timed(ways(seeded=seeded), perf_counter if gpus else cpu_seconds)
            if block:
                times[seeded].append(took)
    speed = {seeded: responses * new_tokens / statistics.median(found) for seeded, found in times.items()}
    unit = "tokens/s" if gpus else "tokens per CPU-second"
    row(
        "a seed for each response",
        f"{speed[True]:.0f} {unit}",
        f"unseeded {speed[False]:.0f}: a seed costs {speed[False] / speed[True] - 1:+.1%}",
    )
    sampler.close()


def parts() -> Iterator[str]:
    """Measurements, one process each."""
    import torch

    gpus = torch.cuda.is_available()
    yield "sync in process"
    for way in ("object_store", "nccl", "ipc") if gpus else ("object_store", "gloo", "ipc"):
        yield f"sync {way}"
    yield from ("sleep 1", "sleep 2") if gpus else ("sleep 1",)
    yield "seeds"


def main() -> None:
    """Run the benchmark."""
    import torch

    gpus = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[SMALL, *SHAPES], default="Qwen2.5-0.5B" if gpus else SMALL)
    parser.add_argument("--syncs", type=int, default=5)
    parser.add_argument("--responses", type=int, default=512)
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        what, _, which = asked.part[0].partition(" ")
        folder = Path(asked.part[1])
        if what == "sync":
            syncs(folder, which, asked.syncs)
        elif what == "sleep":
            naps(folder, int(which), asked.syncs)
        else:
            seeds(folder, asked.responses, asked.syncs)
        return
    device = f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}" if gpus else "CPU"
    with tempfile.TemporaryDirectory() as name:
        save(asked.model, Path(name))
        row(f"{asked.model} on {device}", "median", "")
        row("---", "---", "---")
        for part in parts():
            command = [sys.executable, "-m", "benchmarks.engines", "--part", part, name]
            command += ["--syncs", str(asked.syncs), "--responses", str(asked.responses)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
