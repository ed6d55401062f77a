"""``serve-check``: what can a running server do?"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict

from ..errors import RolloutError
from ..samplers.servers.check import check, usable


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "serve-check", help="ask a running server what it can do",
        description="Ask an OpenAI-compatible server what it can do. The API key, if any, is read from OPENAI_API_KEY.",
    )  # fmt: skip
    command.add_argument("--base-url", required=True, help="its address, such as http://localhost:8000/v1")
    command.add_argument("--model", required=True, help="folder or name of the model, for its tokenizer")
    command.add_argument("--served-model", help="the model's name there, if it is another")
    command.add_argument("--timeout", type=float, default=60.0, help="seconds for one answer (default 60)")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """Say what was found.

    Raises:
        RolloutError: The server cannot measure difficulty or evaluate.
    """
    if not arguments.timeout > 0:
        raise RolloutError(f"--timeout is {arguments.timeout}; it must be above 0")
    findings = check(
        arguments.base_url, arguments.model, api_key=os.environ.get("OPENAI_API_KEY"),
        served_model=arguments.served_model, timeout_seconds=arguments.timeout,
    )  # fmt: skip
    good = usable(findings)
    if arguments.json:
        document = {"usable": good, "findings": [asdict(finding) for finding in findings]}
        yield from json.dumps(document, indent=2).splitlines()
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            yield f"{finding.name:<{width}}  {finding.verdict:<9}  {finding.meaning}"
    if not good:
        raise RolloutError(f"the server at {arguments.base_url} cannot be used: see the lines above that say no")
    if not arguments.json:
        yield "usable for difficulty and evaluation"
