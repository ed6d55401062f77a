"""OpenAI's completions protocol: prompts go out as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..sampling import Request, Sampling
from .answers import Answer, Wrong, counted, only_choice, stopped_at
from .fields import Body, body

ROUTE = "completions"


def asked(
    sampling: Sampling, request: Request, *, served_model: str, stop_token_ids: list[int],
    chat_options: Mapping[str, Any],
) -> Body:  # fmt: skip
    """Return what to send for a request.

    Args:
        chat_options: Not used: the prompt is rendered here.
    """
    del chat_options
    common = body(sampling, request, served_model=served_model, stop_token_ids=stop_token_ids)
    return replace(
        common,
        fields={**common.fields, "prompt": request.prompt_ids},
        optional={**common.optional, "logprobs": {"logprobs": 1}},
    )


def read(answer: Any, request: Request) -> Answer:
    """Return what an answer says.

    Raises:
        Wrong: It is not an answer of this protocol, or it is one to another prompt.
    """
    choice = only_choice(answer)
    try:
        reported = choice.get("logprobs") or {}
        found = Answer(
            finish_reason=str(choice["finish_reason"]),
            text=choice.get("text"),
            ids=choice.get("token_ids"),
            tokens=reported.get("tokens") or [],
            logprobs=reported.get("token_logprobs") or [],
            prompt_ids=choice.get("prompt_token_ids"),
            completion_tokens=counted(answer),
            stopped_at=stopped_at(choice),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Wrong(f"its answer is not one of the completions protocol ({error})") from None
    if found.prompt_ids is not None and found.prompt_ids != request.prompt_ids:
        raise Wrong("it answers another prompt than the one that was sent")
    return found
