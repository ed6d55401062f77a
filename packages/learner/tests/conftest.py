"""A tiny random model, and rollouts recorded from it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
from isocompute.learner.config import BatchConfig, EntropyConfig, KLConfig, LearnerConfig
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.updates.learner import Learner
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

torch.set_num_threads(1)

# Helpers of several files of tests.
sys.path.insert(0, str(Path(__file__).parent))

from small_run import Replay, Trial, exact_norm, recorded, scored  # noqa: E402
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


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
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
    policy = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    return prepare(with_cohorts(scored(policy, recorded()), BatchConfig()), LearnerConfig(learning_rate=1.0))


@pytest.fixture
def config() -> LearnerConfig:
    """All terms of the objective on."""
    return LearnerConfig(learning_rate=1e-2, kl=KLConfig(coefficient=0.01), entropy=EntropyConfig(coefficient=0.01))


@pytest.fixture
def learner(model: Path, config: LearnerConfig) -> Learner:
    return Learner(model, config)


@pytest.fixture
def replay(model: Path) -> Replay:
    return Replay(model)


@pytest.fixture
def trial(model: Path, config: LearnerConfig, tmp_path: Path) -> Trial:
    return Trial(model, config, tmp_path)
