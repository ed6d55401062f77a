"""OpenAI's chat protocol: prompts go out as messages, which the server renders with its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import RolloutError
from ..sampling import Request, Sampling
from .answers import Answer, Wrong, counted, only_choice, stopped_at
from .fields import Body, body

ROUTE = "chat/completions"


def asked(
    sampling: Sampling, request: Request, *, served_model: str, stop_token_ids: list[int],
    chat_options: Mapping[str, Any],
) -> Body:  # fmt: skip
    """Return what to send for a request.

    Args:
        chat_options: Further arguments of the chat template.
    """
    # Servers that know only the newer name say so; those that know only the older would ignore the newer.
    common = body(
        sampling, request, served_model=served_model, stop_token_ids=stop_token_ids, length="max_completion_tokens"
    )
    fields = {**common.fields, "messages": [dict(message) for message in request.messages]}
    own = common.own
    if chat_options:
        fields["chat_template_kwargs"] = dict(chat_options)
        own = (*own, "chat_template_kwargs")
    return replace(common, fields=fields, own=own, optional={**common.optional, "logprobs": {"logprobs": True}})


def read(answer: Any, request: Request) -> Answer:
    """Return what an answer says.

    Raises:
        RolloutError: The server's chat template makes another prompt of the messages than the tokenizer here.
        Wrong: It is not an answer of this protocol.
    """
    choice = only_choice(answer)
    prompt_ids = answer.get("prompt_token_ids")
    if prompt_ids is not None and prompt_ids != request.prompt_ids:
        raise RolloutError(
            f"the server's chat template makes a prompt of {len(prompt_ids)} tokens where the one of --model makes "
            f"{len(request.prompt_ids)}, or other tokens: use the protocol completions, or the same template"
        )
    try:
        message = choice["message"]
        reported = (choice.get("logprobs") or {}).get("content") or []
        ids = choice.get("token_ids")
        # A reasoning parser takes the thinking out of the text; where there are token ids they are decoded instead.
        parsed = message.get("reasoning") or message.get("reasoning_content") or message.get("tool_calls")
        return Answer(
            finish_reason=str(choice["finish_reason"]),
            text=None if ids is not None and parsed else message.get("content") or "",
            ids=ids,
            tokens=[entry["token"] for entry in reported],
            logprobs=[entry["logprob"] for entry in reported],
            prompt_ids=prompt_ids,
            completion_tokens=counted(answer),
            stopped_at=stopped_at(choice),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Wrong(f"its answer is not one of the chat protocol ({error})") from None
