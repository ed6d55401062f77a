"""Which model a server has, and how many tokens that model knows."""

from __future__ import annotations

import threading
from typing import Any

from ...errors import RolloutError
from .client import Failed, Refused
from .several import Server, Servers


def served_name(servers: Servers, model: str, wanted: str | None) -> str:
    """Return a model's name at servers, checked against their lists.

    Args:
        wanted: Its name, if it is known.

    Raises:
        RolloutError: None of them answers, or one refuses or has no such model.
    """
    name, silent = wanted, []
    for server in servers.all:
        url = server.client.base_url
        try:
            listed = _listed(server)
        except Failed as error:
            silent.append(str(error))
            continue
        if name is None:
            name = listed[0] if model not in listed and len(listed) == 1 else model
        if listed and name not in listed:
            raise RolloutError(f"the server at {url} has no model {name} (it has {', '.join(listed)})")
    if len(silent) == len(servers.all):
        raise RolloutError(silent[0])
    return name or model


def _listed(server: Server) -> list[str]:
    """The models that a server lists; none where it has no such list."""
    url = server.client.base_url
    try:
        answer = Servers([server.client]).answered(lambda s: s.client.ask("models", None), threading.Event())
        return [str(entry["id"]) for entry in answer["data"]]
    except Refused as error:
        if error.status == 404:
            return []
        raise RolloutError(f"the server at {url} refuses ({error})") from None
    except (KeyError, TypeError):
        raise RolloutError(f"{url}/models does not answer as an OpenAI-compatible server") from None


def vocabulary(model: str, tokenizer: Any) -> int:
    """Return how many tokens a model has; its output may be wider than its tokenizer.

    Args:
        model: Directory or name of the model; there may be only a tokenizer.
    """
    from transformers import AutoConfig

    try:
        width = int(AutoConfig.from_pretrained(model).get_text_config().vocab_size)
    except (OSError, ValueError, AttributeError):
        width = 0
    return max(width, len(tokenizer))
