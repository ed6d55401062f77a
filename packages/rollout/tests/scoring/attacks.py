"""Responses that attack what scores them: the table of the red team.

Each is a Python program, or a text for parsers. It reaches for something outside, for a neighbour's verdict or for more
than its share; where it can itself see that it got it, it sets ``answer`` to the right one (``{right}``). Names in
braces are filled in by ``outside.Outside``.
"""

from dataclasses import dataclass

from scoring import attacks_on_verdicts, attacks_outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A response.

    Attributes:
        text: A program, or for the kind ``parsers`` any text.
        own: It writes a verdict of its own, which may earn its own reward where a verifier executes it in its own
            process (the README says so), and never another's.
        twice: It looks for what an earlier one left.
    """

    name: str
    kind: str
    text: str
    own: bool
    twice: bool


KINDS = {
    name.lower(): group
    for module in (attacks_outside, attacks_on_verdicts)
    for name, group in vars(module).items()
    if name.isupper() and isinstance(group, dict)
}
ATTACKS = tuple(
    Attack(
        name=name,
        kind=kind,
        text=text,
        own=kind in {"frames", "lines", "replaces"},
        twice=name.startswith("leaves") and kind == "shared",
    )
    for kind, group in KINDS.items()
    for name, text in group.items()
)
EXAMPLES = tuple({attack.kind: attack for attack in reversed(ATTACKS)}.values())[::-1]
"""The first of each kind."""
