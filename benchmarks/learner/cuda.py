"""On a GPU: 0.5 billion parameters, an update alone, with vLLM, and beside TRL; and the largest model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import polars as pl
from isocompute.learner import Learner, LearnerConfig, SyncError
from isocompute.learner.config import ComputeConfig, SyncConfig
from isocompute.learner.cost.rate import matmul_rate
from isocompute.learner.memory.update import GIB, Load, UpdateMemory, parameters_of, update_memory
from isocompute.learner.updates.sync import check_sync
from isocompute.rollout import EngineConfig, Prompting, Sampling, open_sampler

from benchmarks.sampler import SHAPES, NoScoring, character_tokenizer, save_policy

from . import recorded, theirs
from .compare import OURS, TRL, Block, Process, ours, ratio, unlike
from .steps import CoinFlips, Steps, problems_table

SAMPLES, NEW_TOKENS, PROMPT = 64, 512, theirs.PROMPT
BLOCK_STEPS, ROUNDS = 2, 2
ENGINE_SHARE = 0.4
"""Of the GPU's memory, beside a learner."""
CONFIG = LearnerConfig(
    learning_rate=theirs.LEARNING_RATE,
    compute=ComputeConfig(precision="bfloat16", gradient_checkpointing=True, micro_batch_tokens=16_384),
    sampler_dtype="bfloat16",
)
SMALL = SHAPES["Qwen2.5-0.5B"]
WIDE: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
"""As Qwen2.5-3B, whose 36 layers are made fewer or more."""
NARROW: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "tie_word_embeddings": True,
}
"""A sampler is compared on a CPU with this, where there is no GPU."""
SHORT, GROUP, SHARP = 128, 32, 5
"""New tokens, responses to a prompt and sharpness of logits where a sampler is compared."""
TRIED = (0.9, 0.95, 1.0, 1.05)
"""Layers tried, as multiples of the most that are predicted to fit."""


def beside(*, python: Path | None, blocks: int) -> list[str]:
    """Print tokens per second and the share of the GPU's rate, ours and TRL's, in interleaved blocks of steps.

    Both hold an engine and a learner on the GPU, each in a process of its own, and only one of them takes steps at a
    time; what PyTorch keeps of the GPU for later is given back after each block.

    Args:
        python: An interpreter with trl[vllm]==1.16.*, or None: then ours alone is timed.
        blocks: Blocks of each.

    Returns:
        What of the two was not the same work.

    Raises:
        ExperimentError: TRL's process ended with an error.
    """
    import torch

    rate = matmul_rate("cuda", _bfloat16())
    parameters = parameters_of({**SMALL, "model_type": "qwen2", "tie_word_embeddings": True})
    settings = EngineConfig(memory_share=theirs.ENGINE_SHARE, dtype="bfloat16")
    sampling = Sampling(max_new_tokens=NEW_TOKENS, max_prompt_tokens=PROMPT)
    plain = Prompting(template="plain")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        save(folder, SMALL)
        sampler: Any = open_sampler("vllm", str(folder), sampling, scorer=NoScoring(), engine=settings, prompting=plain)
        stack.callback(sampler.close)
        learner, flips = Learner(folder, CONFIG, device="cuda"), CoinFlips(sampler)
        sampler.sync(learner.weights(), learner.version)
        problems = problems_table(8 * theirs.PROBLEMS_PER_BATCH)
        given: dict[str, Any] = {"groups": theirs.PROBLEMS_PER_BATCH, "samples": SAMPLES, "folder": folder / "none"}
        steps = Steps(learner, flips, problems, **given)
        ways: dict[str, Callable[[int], Block]] = {OURS: ours(steps, flips, _seconds)}
        # The first step loads code.
        ways[OURS](1)
        steps.records.clear()
        torch.cuda.empty_cache()
        if python is not None:
            process = Process(python, folder, samples=SAMPLES, new_tokens=NEW_TOKENS, checkpointing=True, cuda=True)
            ways[TRL] = stack.enter_context(process).take
            ways[TRL](1)
        found: dict[str, list[Block]] = {name: [] for name in ways}
        for block in range(blocks):
            for name in list(ways)[:: 1 if block % 2 == 0 else -1]:
                made = ways[name](BLOCK_STEPS)
                torch.cuda.empty_cache()
                found[name].append(made)
                print(f"{name}: {made.tokens} tokens in {made.seconds:.2f} s", flush=True)
        said = steps.phases()
    for name, each in found.items():
        speeds = [block.tokens / block.seconds for block in each]
        mean = sum(block.tokens for block in each) / sum(block.seconds for block in each)
        # 6·N for the update and 2·N for sampling a token.
        share = 8.0 * parameters * mean / rate
        print(
            f"{name}: {mean:.0f} tokens per second ({min(speeds):.0f} to {max(speeds):.0f}), {share:.3f} of "
            f"the {rate / 1e12:.0f} TFLOP/s of a matrix product in bfloat16"
        )
    print(f"ours, wall time per rollout: {said}")
    if TRL not in found:
        return []
    print("over TRL: {:.2f} (95 %: {:.2f} to {:.2f})".format(*ratio(found[OURS], found[TRL])))
    return unlike(found[OURS], found[TRL])


def _seconds() -> float:
    """The time on the wall once the GPU has done what it was given."""
    import torch

    torch.cuda.synchronize()
    return perf_counter()


def largest() -> list[str]:
    """Print how many layers of a model are predicted to train on this GPU, and which numbers of them do."""
    import torch

    total = float(torch.cuda.get_device_properties(0).total_memory)
    layers = most_layers(total)
    print(f"{total / GIB:.1f} GiB: {layers} layers of hidden size 2,048 are predicted to fit\n{plan(layers)}")
    for factor in TRIED:
        tried = max(1, round(layers * factor))
        command = [sys.executable, "-m", "benchmarks.learner", "--largest-one", str(tried)]
        # Without it an H100 ran out of memory with 9 GiB of 79 reserved and unused.
        variables = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **os.environ}
        done = subprocess.run(command, capture_output=True, text=True, env=variables)
        last = _last(done.stdout if done.returncode == 0 else done.stderr)
        print(f"{tried} layers ({parameters_of(_config(tried)) / 1e9:.2f}B parameters): {last}", flush=True)
    return []


def most_layers(available: float) -> int:
    """Return the most layers whose update is predicted to fit.

    Args:
        available: Memory (bytes).
    """
    peaks = {1: plan(1).peak, 2: plan(2).peak}
    fits, exceeds = 1, 2
    while peaks[exceeds] <= available:
        fits, exceeds = exceeds, 2 * exceeds
        peaks[exceeds] = plan(exceeds).peak
    while exceeds - fits > 1:
        # A layer adds about as much as another, and a trace of many takes seconds.
        share = (available - peaks[fits]) / (peaks[exceeds] - peaks[fits])
        tried = min(max(fits + int(share * (exceeds - fits)), fits + 1), exceeds - 1)
        peaks[tried] = plan(tried).peak
        fits, exceeds = (tried, exceeds) if peaks[tried] <= available else (fits, tried)
    return fits


def plan(layers: int) -> UpdateMemory:
    """Trace the memory of an update of the wide model."""
    load = Load(prompt_tokens=PROMPT, response_tokens=NEW_TOKENS, rollouts_per_problem=recorded.GROUP, problems=8)
    return update_memory(_config(layers), CONFIG, load)


def one_size(layers: int) -> None:
    """Take two updates with a model of random weights, and print the memory that they took."""
    import torch

    config = replace(CONFIG, sync=SyncConfig(tolerance=1e9))
    with tempfile.TemporaryDirectory() as name:
        save(Path(name), {**WIDE, "num_hidden_layers": layers})
        learner = Learner(name, config, device="cuda")
    table = recorded.responses(8 * recorded.GROUP, prompt=PROMPT, lengths=(NEW_TOKENS, NEW_TOKENS))
    torch.cuda.reset_peak_memory_stats()
    for version in range(2):
        learner.update(recorded.batch(table.with_columns(weights_version=version)))
    taken = torch.cuda.max_memory_allocated()
    print(f"trains; {taken / GIB:.1f} GiB of tensors at the peak, predicted {plan(layers).peak / GIB:.1f}")


def update() -> list[str]:
    """Print tokens per second of an update alone, and its share of the GPU's rate, the fastest of some."""
    import torch

    load = Load(prompt_tokens=PROMPT, response_tokens=NEW_TOKENS, rollouts_per_problem=SAMPLES, problems=8)
    table = recorded.responses(8 * SAMPLES, prompt=PROMPT, lengths=(NEW_TOKENS, NEW_TOKENS), samples=SAMPLES)
    with tempfile.TemporaryDirectory() as name:
        save(Path(name), SMALL)
        model = json.loads((Path(name) / "config.json").read_text())
        changes: list[dict[str, Any]] = [{}, {"float32_head": True}, {"gradient_checkpointing": False}]
        for changed in changes:
            compute = replace(CONFIG.compute, **changed)
            config = replace(CONFIG, compute=compute, sync=SyncConfig(tolerance=1e9))
            learner, seconds = Learner(name, config, device="cuda"), []
            for version in range(1 + ROUNDS):
                batch = recorded.batch(table.with_columns(weights_version=version))
                torch.cuda.reset_peak_memory_stats()
                began = perf_counter()
                report = learner.update(batch)
                torch.cuda.synchronize()
                seconds.append(perf_counter() - began)
            tokens, share = (each / min(seconds) for each in (report.trained_tokens, report.operations))
            print(
                f"{changed or CONFIG.compute}: {tokens:.0f} tokens per second, {share / report.machine_rate:.3f} of "
                f"the {report.machine_rate / 1e12:.0f} TFLOP/s of a matrix product in bfloat16; "
                f"{torch.cuda.max_memory_allocated() / GIB:.2f} GiB of tensors at the peak, predicted "
                f"{update_memory(model, config, load).peak / GIB:.2f}",
                flush=True,
            )
            del learner
    return []


def engine() -> list[str]:
    """Print what vLLM beside a learner does at 0.5 billion parameters: syncs, tokens, sleep, and its agreement.

    Returns:
        A criterion that is missed: weights of which one tensor was corrupted are taken for the learner's.
    """
    import torch

    def free() -> float:
        return float(torch.cuda.mem_get_info()[0]) / GIB

    sampling = Sampling(max_new_tokens=NEW_TOKENS // 2, max_prompt_tokens=PROMPT)
    options: dict[str, Any] = {"scorer": NoScoring(), "prompting": Prompting(template="plain")}
    settings = EngineConfig(memory_share=ENGINE_SHARE, sleep=1, dtype="bfloat16")
    problems = problems_table(theirs.PROBLEMS_PER_BATCH)
    with tempfile.TemporaryDirectory() as name:
        save(Path(name), SMALL)
        with closing(open_sampler("vllm", name, sampling, engine=settings, **options)) as opened:
            sampler: Any = opened
            learner = Learner(name, CONFIG, device="cuda")
            awake = free()
            for step in (1, 2):
                began = perf_counter()
                sampler.sync(learner.weights(), learner.version)
                torch.cuda.synchronize()
                synced = perf_counter()
                table = CoinFlips(sampler).sample(problems, samples=SAMPLES, seed=step, step=step, run_id="r")
                sampled, asleep = perf_counter(), free()
                tokens = int(table["response_ids"].list.len().sum())
                found = learner.agreement(table.filter(pl.col("sample") < GROUP))
                print(
                    f"sync {synced - began:.2f} s, {tokens / (sampled - synced):.0f} tokens per second, "
                    f"{asleep - awake:.0f} GiB more are free while it sleeps; {found}",
                    flush=True,
                )
                check_sync(found, CONFIG, step=learner.version + 1)
                learner.update(recorded.batch(table))
            weights = {tensor: value.clone() for tensor, value in learner.weights()}
            last = next(tensor for tensor in weights if "mlp.down_proj" in tensor)
            weights[last] += 0.02 * torch.randn_like(weights[last])
            sampler.sync(weights, learner.version)
            table = sampler.sample(problems, samples=2, seed=0, step=learner.version, phase="canary", run_id="r")
            try:
                check_sync(learner.agreement(table), CONFIG, step=learner.version + 1)
            except SyncError as error:
                print(f"a corrupted tensor is noticed: {error}")
                return []
    return ["a corrupted tensor is not noticed"]


def agreement() -> list[str]:
    """Print how far a sampler of transformers is from learners of the same weights, and of those of an update later."""
    import torch

    device, shape = ("cuda", SMALL) if torch.cuda.is_available() else ("cpu", NARROW)
    sampling = Sampling(max_new_tokens=SHORT, max_prompt_tokens=PROMPT)
    problems, plain = problems_table(theirs.PROBLEMS_PER_BATCH), Prompting(template="plain")
    for sharpness in (1, SHARP):
        with tempfile.TemporaryDirectory() as name:
            save(Path(name), shape, sharpness=sharpness, device=device)
            for dtype in ("float32", "float16", "bfloat16"):
                engine: Any = open_sampler(
                    "transformers", name, sampling, scorer=NoScoring(), prompting=plain, device=device, dtype=dtype
                )
                table = CoinFlips(engine).sample(problems, samples=GROUP, seed=1, step=1, run_id="r")
                del engine
                for precision in ("float32", "bfloat16"):
                    for rate in (None, 1e-6, 1e-3) if precision == dtype else (None,):
                        compute = replace(CONFIG.compute, precision=precision)
                        settings = replace(CONFIG, compute=compute, sync=SyncConfig(tolerance=1e9))
                        learner = Learner(name, replace(settings, learning_rate=rate or 1.0), device=device)
                        if rate is not None:
                            learner.update(recorded.batch(table))
                        found = learner.agreement(table)
                        print(
                            f"logits × {sharpness}, sampler {dtype}, learner {precision}, "
                            f"{'synced' if rate is None else f'an update at {rate:g} behind'}: up to "
                            f"{found.maximum:.2g} nats, on average {found.mean:.2g}, 99 % within "
                            f"{found.quantile:.2g}, k3 {found.k3:.2g}",
                            flush=True,
                        )
                        del learner
    return []


def save(folder: Path, shape: dict[str, Any], *, sharpness: float = 1.0, device: str = "cuda") -> None:
    """Save a Qwen2 of random weights, with a tokenizer that has a text for each of its tokens.

    Args:
        shape: Sizes, as in its ``config.json``.
        sharpness: What its logits are multiplied by: random weights alone give nearly equal probabilities.
    """
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

    own = character_tokenizer()
    known = own.get_vocab()
    filled = {f"<{i}>": i for i in range(len(known), shape["vocab_size"])}
    inner = Tokenizer(models.WordLevel({**known, **filled}, unk_token=own.pad_token))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=own.pad_token, eos_token=own.eos_token, clean_up_tokenization_spaces=False
    )
    torch.manual_seed(0)
    config = Qwen2Config(**shape, bos_token_id=None, eos_token_id=1, pad_token_id=0)
    # A CPU draws billions of random numbers for minutes.
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.model.norm.weight.data.mul_(sharpness)
    save_policy(model, tokenizer, folder)


def _last(said: str) -> str:
    return (said.strip() or "it said nothing").splitlines()[-1]


def _config(layers: int) -> dict[str, Any]:
    return {**WIDE, "model_type": "qwen2", "num_hidden_layers": layers}


def _bfloat16() -> Any:
    import torch

    return torch.bfloat16
