"""A process that renders a chat template once, from JSON on its standard input: a template may not terminate.

Template errors are left to the real rendering. It is run by path and imports nothing of this package.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any


def main() -> None:
    """Render within limits that end this process."""
    given: dict[str, Any] = json.load(sys.stdin)
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (given["seconds"], given["seconds"]))
        resource.setrlimit(resource.RLIMIT_AS, (given["bytes"], given["bytes"]))
    try:
        _render(given["template"], given["values"])
    except MemoryError:
        sys.exit("it needs more memory")
    except Exception as error:
        print(type(error).__name__)


def _render(template: str, values: dict[str, Any]) -> None:
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag that transformers adds for the assistant's text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refused(message: object) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, default=str)
    named = {"raise_exception": refused, "strftime_now": lambda form: str(form)}
    # Piece by piece, so that the output is not kept in memory.
    for _ in environment.from_string(template, globals=named).generate(**values):
        pass


if __name__ == "__main__":
    main()
