"""transformers in this process, for machines where vLLM cannot run."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract.files import reason_of
from ..errors import RolloutError, library
from ..scoring.scorer import Scorer
from .decoding import Decoding, layers, padded, with_one_more
from .local import LocalSampler
from .prompts import Prompting, check_folder, not_loaded
from .sampling import DTYPES, Continue, Finished, Request, Response, Sampling
from .weights import Payload, place_of

if TYPE_CHECKING:
    import torch

SPREAD = 2
"""Longest prompt of a batch as a multiple of its shortest: at most so much more is computed for padding."""
SAME = 1e-5
"""Nats by which scores with padding may differ from those without, by rounding."""


class TransformersSampler(LocalSampler):
    """Samples with a plain transformers model and its KV cache.

    Every response draws from its own generator, so its tokens do not depend on the batch, but for rounding: other sizes
    are multiplied by other kernels. Prompts of different lengths are answered together, the shorter ones padded, where
    the model was seen to give the same scores with padding as without.

    Raises:
        RolloutError: torch or transformers is not installed, the model cannot be loaded, or an argument is not valid.
    """

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        batch_size: int = 256,
        prompting: Prompting | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise RolloutError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise RolloutError(f"batch_size is {batch_size!r}; it must be a whole number of at least 1")
        check_folder(model)
        super().__init__(model, sampling, prompting=prompting, scorer=scorer)
        torch = library("torch", extra="transformers")
        from transformers import AutoModelForCausalLM

        try:
            loaded = AutoModelForCausalLM.from_pretrained(self.model, dtype=getattr(torch, dtype))
        except Exception as error:
            raise not_loaded(self.model, error) from None
        try:
            self._policy: Any = loaded.to(device).eval()
        except (RuntimeError, AssertionError) as error:
            raise RolloutError(f"device is {device!r}, where the model cannot be placed ({reason_of(error)})") from None
        self._device, self.dtype, self.place = device, dtype, place_of(device)
        self._batch_size = batch_size
        # Of several lengths of prompts, each is to fill a batch.
        self.holds = 4 * batch_size
        # The head's logits of a whole prompt would take prompt length × vocabulary floats per response.
        takes = inspect.signature(self._policy.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._spread = SPREAD if {"attention_mask", "position_ids"} <= set(takes) and self._leaves_padding_out() else 1

    def _load(self, payload: Payload) -> None:
        import torch

        mine = self._policy.state_dict()
        with torch.no_grad():
            # A tied tensor may come under one of its names or under both; names and shapes were checked.
            for name, tensor in payload.tensors(self._device):
                mine[name].copy_(tensor.detach())

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        waiting: dict[int, list[tuple[int, Request]]] = {}
        taken = 0
        while waiting or taken < len(requests):
            for request in requests[taken:]:
                waiting.setdefault(len(request.prompt_ids), []).append((taken, request))
                taken += 1
            # Shortest first: a follow-up is longer than what it follows, and waits for others of its length.
            shortest = min(waiting)
            together: list[tuple[int, Request]] = []
            for length in sorted(waiting):
                if length > self._spread * shortest or len(together) == self._batch_size:
                    break
                free = self._batch_size - len(together)
                together += waiting[length][:free]
                waiting[length] = waiting[length][free:]
            waiting = {length: left for length, left in waiting.items() if left}
            decoding, begun = self.decoding(), together
            while begun or decoding:
                ended = False
                for index, response in decoding.step(begun):
                    following = control(index, response)
                    if isinstance(following, Response):
                        ended = True
                        yield index, following
                    else:
                        waiting.setdefault(len(following.prompt_ids), []).append((index, following))
                begun = []
                if not ended:
                    yield None

    def decoding(self) -> Decoding:
        """Begin to decode with the settings of now, beside whatever else is being decoded."""
        return Decoding(
            self._forward,
            self.sampling,
            tokenizer=self.tokenizer,
            ends=frozenset(self.stop_token_ids),
            device=self._device,
            version=lambda: self.weights_version,
        )

    def check_joins(self) -> None:
        """Refuse a model of which responses cannot begin beside others in the making."""
        if self._spread == 1:
            raise RolloutError(
                f"the model {self.model} in {self.dtype} gives other scores beside padding (by more than {SAME:g} "
                "nats), so that its responses cannot begin beside others; another model or dtype float32 must be given"
            )
        layers(self._forward(*padded([[0]], self._device), None)[1])

    def _leaves_padding_out(self) -> bool:
        """Return whether a prompt beside a longer one gets the scores that it gets alone, and its next token, too."""
        import torch

        tokens = np.random.default_rng(0).integers(len(self.tokenizer), size=6).tolist()

        def scores(*prompts: list[int]) -> torch.Tensor:
            given, mask = padded(prompts, self._device)
            first, cache = self._forward(given, mask, None)
            second, _ = self._forward(given[:, -1:], with_one_more(mask), cache)
            return torch.stack([first[-1], second[-1]]).float().log_softmax(-1)

        try:
            return bool((scores(tokens[:3]) - scores(tokens, tokens[:3])).abs().max() <= SAME)
        except Exception:
            # A model may take a mask and not such a one, or keep no cache, which sampling names.
            return False

    def _forward(self, given: torch.Tensor, mask: torch.Tensor | None, cache: Any) -> tuple[torch.Tensor, Any]:
        """Return the logits after the last of some tokens, and the cache; the mask is 0 at its padding and theirs."""
        import torch

        with torch.inference_mode():
            placed = {}
            if mask is not None:
                positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -given.shape[1] :]
                placed = {"attention_mask": mask, "position_ids": positions}
            out = self._policy(input_ids=given, past_key_values=cache, use_cache=True, **placed, **self._last_only)
            if getattr(out, "past_key_values", None) is None:
                raise RolloutError(f"the model {self.model} keeps no cache of keys and values, which sampling needs")
            return out.logits[:, -1], out.past_key_values
