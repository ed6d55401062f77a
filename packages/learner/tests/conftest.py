"""A tiny random model, rollouts recorded from it, and a sampler that replays recorded rollouts."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import settings
from isocompute.learner.config import BatchConfig, EntropyConfig, KLConfig, LearnerConfig
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.updates.learner import Learner
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

torch.set_num_threads(1)

# Properties are tried without a limit of time: a machine may be busy.
settings.register_profile("unhurried", deadline=None)

settings.load_profile("unhurried")

# Helpers of several files of tests.
sys.path.insert(0, str(Path(__file__).parent))

from small_run import exact_norm, recorded, scored  # noqa: E402
from tiny_models import TWO_LAYERS  # noqa: E402


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved Llama of two layers with untied embeddings."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(**TWO_LAYERS, tie_word_embeddings=False)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tied_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same Llama with an output head that is its embedding."""
    policy = LlamaForCausalLM.from_pretrained(model)
    policy.config.tie_word_embeddings = True
    policy.tie_weights()
    folder = tmp_path_factory.mktemp("tied")
    policy.save_pretrained(folder)
    return folder


class Replay:
    """A sampler whose answers were recorded: it scores them with the weights that it was last synced with."""

    def __init__(self, model: Path) -> None:
        self._policy = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.weights_version = 0

    def sync(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take over the weights."""
        tied = self._policy.config.tie_word_embeddings
        self._policy.load_state_dict(dict(weights), strict=not tied)
        self.weights_version = version

    def sample(
        self,
        problems: pl.DataFrame,
        *,
        samples: int,
        seed: int,
        step: int,
        phase: str,
        run_id: str,
        max_new_tokens: int | None = None,
    ) -> pl.DataFrame:
        """The same tokens for the same seed and step, whatever the weights."""
        rows = recorded(groups=len(problems), n=samples, version=self.weights_version, step=step, seed=seed)
        names = {f"p{place}": name for place, name in enumerate(problems["problem_id"])}
        named = rows.with_columns(pl.col("problem_id").replace(names), phase=pl.lit(phase))
        return scored(self._policy, named)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of two processors."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        # Ray's own default, whatever TMPDIR says: the paths of its sockets must stay below 108 bytes, and its
        # workers end at once where the folder lies in $VIRTUAL_ENV, as the temporary folder of nox does.
        patch.setenv("RAY_TMPDIR", os.environ.get("RAY_TMPDIR", "/tmp"))
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture
def double() -> Iterator[None]:
    """Norms in float64, which are computed in float32 whatever the weights' type."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaRMSNorm, "forward", exact_norm)
        yield


@pytest.fixture
def rollouts(model: Path) -> pl.DataFrame:
    """Four groups of four."""
    policy = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    return prepare(with_cohorts(scored(policy, recorded()), BatchConfig()), LearnerConfig(learning_rate=1.0))


@pytest.fixture
def config() -> LearnerConfig:
    """All terms of the objective on."""
    return LearnerConfig(learning_rate=1e-2, kl=KLConfig(coefficient=0.01), entropy=EntropyConfig(coefficient=0.01))


@pytest.fixture
def learner(model: Path, config: LearnerConfig) -> Learner:
    """A learner at version 0."""
    return Learner(model, config)


@pytest.fixture
def replay(model: Path) -> Replay:
    """A sampler at version 0."""
    return Replay(model)
