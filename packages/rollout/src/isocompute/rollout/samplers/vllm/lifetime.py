"""The end of engines: those of one process share vLLM's process groups, which only the last one may take away."""

from __future__ import annotations

import gc
import weakref
from typing import Any

_OPEN: set[int] = set()


def keep(llm: Any, owner: Any) -> weakref.finalize[Any, Any]:
    """Tie an engine to its owner: it ends when that is collected, or when what is returned is called.

    vLLM itself takes the groups away with the first engine that ends, and every other engine of the process then fails.

    Args:
        llm: vLLM's ``LLM``.
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
