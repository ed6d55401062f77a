"""A sampler whose tokens are hashes of weights and of a response's seed, its replicas, and tensors that get lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from isocompute.rollout import Sampling, response_seed
from isocompute.rollout.samplers.base import Group, Sampler
from isocompute.rollout.samplers.replicas.replica import GATHER_SECONDS
from isocompute.rollout.samplers.sampling import Draw, Response
from isocompute.rollout.samplers.weights import Manifest, Payload, Rendezvous
from isocompute.rollout.scoring.scorer import Verdict

SHAPES = {f"layer.{i}": (4 + i, 8) for i in range(6)}
"""The tensors of its model."""


def problems(count: int) -> pl.DataFrame:
    """A ``problems`` table."""
    named = {"problem_id": [f"p{i:03}" for i in range(count)], "prompt": [f"{i}+{i}=" for i in range(count)]}
    return pl.DataFrame({**named, "answer": "2", "verifier": "exact", "source": "s", "split": "train"})


def weights(seed: int) -> dict[str, Any]:
    """Other tensors for each seed; those of seed 0 are the model's own."""
    import torch

    source = np.random.default_rng(seed)
    return {name: torch.from_numpy(source.normal(size=shape).astype(np.float32)) for name, shape in SHAPES.items()}


class Lost:
    """A tensor of the right shape that is gone when it is copied, as when a learner dies while it sends."""

    def __init__(self, tensor: Any) -> None:
        self.shape, self.dtype, self.nbytes = tensor.shape, tensor.dtype, tensor.nbytes

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the tensor is gone ({name})")


SAMPLING = Sampling(max_new_tokens=12, max_prompt_tokens=16)
HANGING_SECONDS = 15.0
"""Longer than a replica takes to come up again, torch included: till then the only other one may be kept waiting."""


def replicas(folder: Path, count: int, **options: Any) -> Any:
    """Replicas of ``HashedSampler`` whose processes come up in seconds, and which take weights in six buckets."""
    from isocompute.rollout.samplers.replicas.pool import Replicas

    settings = {"bucket_bytes": 300, "answer_seconds": HANGING_SECONDS} | options
    opener = partial(HashedSampler, SAMPLING, folder)
    opened = Replicas(opener, "hashed", SAMPLING, replicas=count, **settings)
    opened.alone, opened.folder = HashedSampler(SAMPLING, folder), folder
    return opened


def synced(pool: Any, seed: int, version: int) -> None:
    """Sync the same weights with replicas and with the sampler in this process."""
    for each in (pool, pool.alone):
        each.sync(weights(seed), version)


class HashedSampler(Sampler):
    """Answers with up to ``max_new_tokens`` tokens that a hash of weights and seed determines.

    Args:
        folder: Where a file named ``wait-PROCESS`` makes the process of that id wait before each group,
            ``fall-PROCESS`` die and ``stay-PROCESS`` wait before it joins a broadcast, ``pace-PROCESS`` take longer
            over a group than groups are gathered, ``mangle-PROCESS`` take one weight for another, and
            ``deadly-PROBLEM`` kills any process that begins with that problem.
    """

    holds = 6
    dtype = "float32"

    def __init__(self, sampling: Sampling, folder: Path) -> None:
        super().__init__("hashed", sampling)
        # Payloads need it: not within the timeout of the first one.
        import_module("torch")
        self._folder = folder
        source = np.random.default_rng(0)
        self._weights = {n: source.normal(size=s).astype(np.float32).tobytes() for n, s in SHAPES.items()}

    @property
    def manifest(self) -> Manifest:
        return Manifest(shapes=SHAPES, tied={})

    def lengths(self, problems: pl.DataFrame) -> list[int]:
        self.faults.check()
        return [len(prompt) for prompt in problems["prompt"]]

    def probe(self) -> list[float]:
        return [self._hash(number) / 2**64 for number in range(4)]

    def join(self, rendezvous: Rendezvous, rank: int) -> None:
        if self._told("fall"):
            os.kill(os.getpid(), signal.SIGKILL)
        while self._told("stay"):
            sleep(0.01)
        super().join(rendezvous, rank)

    def _begin_load(self) -> None:
        self._weights = {}

    def _load(self, payload: Payload) -> None:
        for name, tensor in payload.tensors("cpu"):
            self._weights[name] = tensor.numpy().tobytes()

    def _end_load(self) -> None:
        if self._told("mangle"):
            self._weights["layer.0"] = self._weights["layer.1"]

    def _told(self, what: str) -> bool:
        return (self._folder / f"{what}-{os.getpid()}").exists()

    def _hash(self, seed: int) -> int:
        digest = blake2b(str(seed).encode(), digest_size=8)
        for name in sorted(self._weights):
            digest.update(self._weights[name])
        return int.from_bytes(digest.digest(), "big")

    def _batches(self, problems: pl.DataFrame, draw: Draw) -> Iterator[pa.RecordBatch]:
        self.lengths(problems)
        for problem_id, prompt in problems.select("problem_id", "prompt").iter_rows():
            while self._told("wait"):
                sleep(0.01)
            if (self._folder / f"deadly-{problem_id}").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            if self._told("pace"):
                sleep(2 * GATHER_SECONDS)
            numbers = range(draw.first_sample, draw.first_sample + draw.samples)
            responses = [self._response(draw, problem_id, sample) for sample in numbers]
            tokens, texts = [ord(c) for c in prompt], [""] * len(responses)
            group = Group(problem_id=problem_id, prompt_ids=tokens, responses=responses, texts=texts)
            verdicts = [Verdict(reward=float(r.ids[0] % 2)) for r in responses]
            yield self.columns().batch(group, verdicts, draw=draw, version=self.weights_version)

    def _response(self, draw: Draw, problem_id: str, sample: int) -> Response:
        seed = response_seed(draw.seed, draw.phase, draw.step, problem_id, sample)
        source = np.random.default_rng(self._hash(seed))
        ids = source.integers(100, size=source.integers(1, self.sampling.max_new_tokens + 1)).astype(np.int32)
        return Response(ids=ids, logprobs=-source.random(len(ids)).astype(np.float32), finish_reason="stop")
