"""Single requests to one server, for finding out what it can do."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cached_property
from types import ModuleType
from typing import Any

from ..models import stop_tokens
from ..prompts import Prompting, PromptMaker
from ..sampling import Request, Response, Sampling
from . import completions
from .answers import Reader
from .client import Client
from .fields import NEUTRAL, Body, ask
from .served import vocabulary
from .several import Servers

PROMPT = "1+1="
"""Short, so that it fits every server, and open enough that models do not always say the same."""

TOKENS = 8

SEEDS = range(8)


class Probe:
    """Asks one server what a sampler would ask it.

    Args:
        tokenizer: The tokenizer of the model that it serves.
        model: Directory or name of that model.
        served_model: Its name at the server.
    """

    def __init__(self, client: Client, tokenizer: Any, *, model: str, served_model: str) -> None:
        self.client, self.tokenizer = client, tokenizer
        self.protocol: ModuleType = completions
        self._servers = Servers([client])
        self._served_model = served_model
        self._vocabulary, self._ends = vocabulary(model, tokenizer), stop_tokens(model, tokenizer)
        self._prompts = PromptMaker(tokenizer, Prompting(), max_prompt_tokens=2**20)

    @cached_property
    def alone(self) -> list[Response]:
        """A response per seed of ``SEEDS``, asked for one after the other."""
        return [self.sample(seed=seed) for seed in SEEDS]

    @property
    def takes_neutral(self) -> bool:
        """Whether the server took every field that overrides a generation config."""
        return not self._servers.all[0].refused & set(NEUTRAL)

    def sample(self, *, seed: int = 0, tokens: int = TOKENS, explicit: bool = True, **sampling: Any) -> Response:
        """Sample one response to ``PROMPT``.

        Args:
            explicit: Whether the fields are sent that override a generation config.
            **sampling: Further fields of ``Sampling``.

        Raises:
            RolloutError: The server refuses what is asked for.
            Refused: It says that the request is wrong.
            Failed: It fails, or its answer is wrong.
        """
        request = Request(
            prompt_ids=self._prompts.ids("probe", PROMPT),
            seed=seed,
            max_new_tokens=tokens,
            messages=self._prompts.messages(PROMPT),
        )
        settings = Sampling(max_new_tokens=tokens, **sampling)
        body = self.protocol.asked(
            settings, request, served_model=self._served_model, stop_token_ids=[], chat_options={}
        )
        if not explicit:
            body = replace(body, optional={k: v for k, v in body.optional.items() if k not in NEUTRAL})
        answer = self._asked(self.protocol.ROUTE, body)
        reader = Reader(self.tokenizer, vocabulary=self._vocabulary, ends=self._ends, stops=bool(settings.stop))
        return reader.response(self.protocol.read(answer, request), request)

    def tokenized(self) -> tuple[list[int] | int | None, list[int]]:
        """Return what the server makes of ``PROMPT`` sent as text, and what the tokenizer here makes of it.

        Returns:
            The token ids at the server, their number, or None where it says neither; and the token ids here.
        """
        asked = {"model": self._served_model, "prompt": PROMPT, "max_tokens": 1}
        mine = list(self.tokenizer(PROMPT)["input_ids"])
        body = Body(fields=asked, optional={"return_token_ids": {"return_token_ids": True}}, instead={})
        answer = self._asked(completions.ROUTE, body)
        try:
            ids = answer["choices"][0].get("prompt_token_ids")
            return (answer["usage"]["prompt_tokens"] if ids is None else ids), mine
        except (KeyError, TypeError, IndexError):
            return None, mine

    def _asked(self, route: str, body: Body) -> Any:
        """Ask as often as a sampler would: a lost connection says nothing about what the server can do."""
        halt = threading.Event()
        return self._servers.answered(lambda server: ask(server, route, body, halt=halt), halt)
