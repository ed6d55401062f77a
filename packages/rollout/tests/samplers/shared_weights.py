"""The side of a process that is given weights of another one's memory."""

from typing import Any


def take(payloads: list[tuple[Any, Any]], answers: Any) -> None:
    """Read what another process has shared, each on a device, and say what it is."""
    for payload, device in payloads:
        answers.put({name: tensor.tolist() for name, tensor in payload.tensors(device)})
