"""The fields of a request, and which of them a server may refuse without changing what is sampled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import RolloutError
from ..sampling import Request, Sampling
from .client import Refused
from .several import Server

WRONG_REQUEST = {400, 422}
"""Statuses with which servers refuse fields that they do not know."""

NEUTRAL: Mapping[str, Any] = {
    "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
"""Servers fill in what a request does not set from the model's generation config; these values restrict nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What is sent.

    Attributes:
        fields: What every server must take.
        optional: Groups of fields that a strict server may refuse, since nothing that is sampled depends on them: the
            name of a group and its fields.
        instead: For some groups the fields sent where they are refused.
        own: Names in ``fields`` that OpenAI's protocol does not have; what is sampled depends on them.
    """

    fields: Mapping[str, Any]
    optional: Mapping[str, Mapping[str, Any]]
    instead: Mapping[str, Mapping[str, Any]]
    own: tuple[str, ...] = ()

    def without(self, refused: frozenset[str]) -> dict[str, Any]:
        """Return the body without some groups."""
        sent = dict(self.fields)
        for group, fields in self.optional.items():
            sent |= self.instead.get(group, {}) if group in refused else fields
        return sent

    def blamed(self, reason: str, refused: frozenset[str]) -> frozenset[str]:
        """Return the groups to leave out next: those that a refusal names, or else all.

        Args:
            refused: Groups already left out.

        Raises:
            RolloutError: The refusal names a field that changes what is sampled.
        """
        words = set(re.findall(r"\w+", reason))
        left = {group: fields for group, fields in self.optional.items() if group not in refused}
        named = frozenset(group for group, fields in left.items() if words & set(fields))
        for name in self.own:
            if name in words and not named:
                raise RolloutError(
                    f"the server refuses {name} ({reason}), and without it the responses would be others: do not ask "
                    "for it, or use a server that knows it, such as vLLM's"
                )
        return named or frozenset(left)


def body(
    sampling: Sampling, request: Request, *, served_model: str, stop_token_ids: list[int], length: str = "max_tokens"
) -> Body:
    """Return what both protocols have in common.

    Args:
        length: The field that limits the length.
    """
    fields: dict[str, Any] = {
        "model": served_model, "seed": request.seed, "temperature": sampling.temperature, "top_p": sampling.top_p,
        "n": 1,
    }  # fmt: skip
    own = {name: value for name in ("top_k", "min_p") if (value := getattr(sampling, name))}
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    optional = {name: {name: value} for name, value in NEUTRAL.items() if name not in own}
    if sampling.stop_token_ids:
        own["stop_token_ids"] = stop_token_ids
    elif stop_token_ids:
        # A server ends at its model's own end-of-sequence tokens without being told.
        optional["stop_token_ids"] = {"stop_token_ids": stop_token_ids}
    optional["return_token_ids"] = {"return_token_ids": True}
    instead: dict[str, Mapping[str, Any]] = {}
    if length == "max_tokens":
        fields["max_tokens"] = request.max_new_tokens
    else:
        optional["max_tokens"] = {"max_tokens": request.max_new_tokens}
        instead["max_tokens"] = {length: request.max_new_tokens}
    return Body(fields={**fields, **own}, optional=optional, instead=instead, own=tuple(own))


def ask(server: Server, route: str, asked: Body, *, halt: Any) -> Any:
    """Ask a server, without the optional fields that it refuses.

    Args:
        server: The server; it remembers which groups of fields it refuses.
        route: Below its address.
        halt: Ends the exchange as soon as it is set.

    Returns:
        The answer's JSON.

    Raises:
        RolloutError: The server refuses a field that changes what is sampled.
        Refused: The server says that the request is wrong even without the optional fields.
        Failed: The server failed.
    """
    refused, first = server.refused, None
    while True:
        try:
            answer = server.client.ask(route, asked.without(refused), halt=halt)
        except Refused as error:
            first = first or error
            more = asked.blamed(str(error), refused) if error.status in WRONG_REQUEST else frozenset()
            if not more:
                raise first from None
            refused |= more
        else:
            server.refused |= refused
            return answer
