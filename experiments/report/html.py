"""Pieces of HTML: tables, images, caveats."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

STYLE = """
body{font:16px/1.55 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1a202c}
h1{font-size:1.7rem}h2{margin-top:2.2rem;border-bottom:1px solid #e2e8f0}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
td,th{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #edf2f7}
td:first-child,th:first-child{text-align:left}
img{max-width:100%}.answer{background:#f0f7ff;border-left:4px solid #2b6cb0;padding:.8rem 1rem}
.caveat{background:#fffaf0;border-left:4px solid #c05621;padding:.5rem 1rem;margin:.5rem 0}
"""


def page(title: str, parts: Sequence[str]) -> str:
    """A whole document that needs no other file."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table.

    Args:
        head: The headings of its columns.
        rows: Its cells; they are escaped.
    """
    top = "".join(f"<th>{escape(str(h))}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def image(path: Path, text: str) -> str:
    """A PNG inside the page; nothing where there is none.

    Args:
        text: What it shows, for those who do not see it.
    """
    if not path.exists():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(text)}" src="data:image/png;base64,{data}"></p>'


def caveats(found: Iterable[tuple[str, str]]) -> str:
    """What to read with care, or that there is nothing.

    Args:
        found: What each caveat is about, and what it says.
    """
    shown = [f'<div class="caveat"><b>{escape(what)}</b>: {escape(said)}.</div>' for what, said in found]
    return "".join(shown) or "<p>None.</p>"
