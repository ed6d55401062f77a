"""What is prescribed and how its test ended, the curves behind it, and what to read with care."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from isocompute.frontier import MEANING, Flag

from .html import table


def answer(allocation: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """What is prescribed, how sure that is, and how its test ended.

    Args:
        allocation: What ``allocation.json`` holds.
        comparison: What ``comparison.json`` holds.
    """
    chosen = allocation["candidates"][0]
    competing = [c for c in allocation["candidates"] if c["standing"] != "refused"]
    share = f"{chosen['probability']:.0%} of the refits" + (" (within-run)" if allocation["within_run"] else "")
    text = (
        f"For {allocation['budget']:,} {allocation['unit']}: <b>n = {allocation['rollouts_per_problem']}</b>, "
        f"B<sub>p</sub> = {allocation['problems_per_batch']}, M = {allocation['update_steps']:,}, learning rate "
        f"{allocation['learning_rate']:.3g} ({escape(allocation['learning_rate_source'])}). "
        f"Of {len(competing)} n it was best in {share}; expected "
        f"reward {chosen['reward']:.3f} (95&nbsp;%: {chosen['reward_low']:.3f} to {chosen['reward_high']:.3f})."
    )
    if not comparison["tested"]:
        return f'<p class="answer">{text} Not tested: {escape(comparison["reason"])}.</p>'
    rows = [
        (
            f"n = {c['prescribed']} against n = {c['baseline']}",
            "—" if c["mean"] is None else f"{c['mean']:+.3f}",
            "—" if not c["interval"] else f"{c['interval'][0]:+.3f} to {c['interval'][1]:+.3f}",
            len(c["differences"]),
            "—" if c["p_value"] is None else f"{c['p_value']:.2g}",
            c["verdict"],
        )
        for c in comparison["against"]
    ]
    return (
        f'<p class="answer">{text}</p><p>Trained at that budget with fresh seeds, next to fixed n; difference of '
        "the last evaluations, seed by seed:</p>"
        + table(("comparison", "difference", "95 % t interval", "seeds", "p, all comparisons (Holm)", "verdict"), rows)
    )


def curves(fits: Mapping[str, Any]) -> str:
    """The form and the asymptote of every curve."""
    rows = []
    for c in fits["curves"]:
        if c["params"] is None:
            rows.append((f"n = {c['rollouts_per_problem']}", c["problems_per_batch"], "none", "—", c["reason"]))
            continue
        low, high = c["intervals"]["A"]
        rows.append(
            (f"n = {c['rollouts_per_problem']}", c["problems_per_batch"], c["form"], f"{c['params']['A']:.3f}",
             f"{low:.3f} to {high:.3f}")
        )  # fmt: skip
    return table(("curve", "B_p", "form", "levels off at", "95 %"), rows)


def statements(fits: Mapping[str, Any]) -> str:
    """What the fits say in words."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in fits["statements"]) + "</ul>"


def caveats(fits: Mapping[str, Any], allocation: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Why the curves, the frontier and the prescription must be read with care.

    Args:
        fits: What ``fits.json`` holds.
        allocation: What ``allocation.json`` holds.

    Returns:
        What each caveat is about, and what it says.
    """
    found = [(f"n = {c['rollouts_per_problem']}", MEANING[Flag(flag)]) for c in fits["curves"] for flag in c["flags"]]
    found += [("n*(C)", MEANING[Flag(flag)]) for flag in fits["n_star"]["flags"]]
    found += [("the prescription", MEANING[Flag(flag)]) for flag in allocation["flags"]]
    return found
