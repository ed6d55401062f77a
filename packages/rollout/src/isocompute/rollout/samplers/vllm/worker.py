"""What vLLM's workers can do besides: take over weights in parts, or leave them as they were."""

from __future__ import annotations

from typing import Any

from .. import broadcasting
from ..broadcasting import Rendezvous
from ..payloads import Payload

NAME = f"{__name__}.WeightWorker"
"""Under which vLLM imports the class, in whichever process its workers run (``worker_extension_cls``)."""


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
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self.forget_torn_weights()
        with self._configured():
            initialize_layerwise_reload(self.model_runner.get_model())

    def take_weights(self, payload: Payload) -> None:
        """Load one part of the weights."""
        with self._configured():
            self.model_runner.get_model().load_weights(payload.tensors(self.device))

    def end_weights(self) -> None:
        """Pack the layers again."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with self._configured():
            finalize_layerwise_reload(self.model_runner.get_model(), self.model_config)
        self.repack_tied_head()

    def join_broadcast(self, rendezvous: Rendezvous, rank: int) -> None:
        """Join the group over which weights are broadcast.

        Args:
            rank: That of the engine's first worker.
        """
        broadcasting.join(rendezvous, rank + self.rank)

    def _configured(self) -> Any:
        """The context in which vLLM's layers find their settings."""
        from vllm.config import set_current_vllm_config

        return set_current_vllm_config(self.vllm_config)

    def forget_torn_weights(self) -> None:
        """Undo a reload that was cut off, which would otherwise mix its tensors into the next."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        model = self.model_runner.get_model()
        torn = [info for info in map(get_layerwise_info, model.modules()) if info.can_load()]
        for info in torn:
            info.loaded_weights.clear()
            info.load_numel = 0
        if torn:
            with self._configured():
                finalize_layerwise_reload(model, self.model_config)

    def repack_tied_head(self) -> None:
        """Pack the output head again where it is the embedding: a reload packs only layers that it loads."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        if not self.model_config.hf_config.get_text_config().tie_word_embeddings:
            return
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
