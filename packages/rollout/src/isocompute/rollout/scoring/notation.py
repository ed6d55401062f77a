r"""Notation of answers: converts units, percent, bases and marks to LaTeX that math-verify reads without losing them.

Anything without a value of its own, such as a unit or the base of a number, becomes a symbol whose name describes it
(``MARK``). It then takes part in sums, powers, tuples and sets like any other symbol; ``equivalence`` compares it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

LONGEST = 4096
"""Characters of the longest answer that is read."""
UNITS: dict[str, tuple[str, str]] = {
    "mm millimeter millimetre": ("1/1000", "meter"),
    "cm centimeter centimetre": ("1/100", "meter"),
    "dm decimeter decimetre": ("1/10", "meter"),
    "m meter metre": ("1", "meter"),
    "km kilometer kilometre": ("1000", "meter"),
    "inch inches in": ("127/5000", "meter"),
    "ft foot feet": ("381/1250", "meter"),
    "yd yard": ("1143/1250", "meter"),
    "mi mile": ("201168/125", "meter"),
    "mg milligram": ("1/1000", "gram"),
    "g gram gm": ("1", "gram"),
    "kg kilogram": ("1000", "gram"),
    "ton tonne": ("1000000", "gram"),
    "oz ounce": ("1", "ounce"),
    "lb pound": ("16", "ounce"),
    "ms millisecond": ("1/1000", "second"),
    "s sec second": ("1", "second"),
    "min minute": ("60", "second"),
    "h hr hour": ("3600", "second"),
    "day": ("86400", "second"),
    "week": ("604800", "second"),
    "month": ("1", "month"),
    "year yr": ("12", "month"),
    "ml milliliter millilitre": ("1/1000", "liter"),
    "l liter litre": ("1", "liter"),
    "gallon gal": ("4", "quart"),
    "quart": ("1", "quart"),
    "cent": ("1/100", "dollar"),
    "dollar usd": ("1", "dollar"),
    "euro eur": ("1", "euro"),
    "yuan": ("1", "yuan"),
    "rupee rs": ("1", "rupee"),
    "newton N": ("1", "newton"),
    "joule J": ("1", "joule"),
    "watt W": ("1", "watt"),
    "volt V": ("1", "volt"),
    "ohm": ("1", "ohm"),
    "hertz hz": ("1", "hertz"),
    "mol mole": ("1", "mole"),
    "kelvin K": ("1", "kelvin"),
    "celsius": ("1", "celsius"),
    "fahrenheit": ("1", "fahrenheit"),
    "mph": ("1397/3125", "meter/second"),
    "rad radian": ("1", "1"),
    "degree deg": ("1", "pi/180"),
    "hundredth percent pct percentage": ("1/100", "1"),
    "am a.m": ("1", "morning"),
    "pm p.m": ("1", "afternoon"),
}
"""Units by their spellings, the first of which is the name: their size in the unit used for comparing sizes."""
_SPELLINGS = {spelling: names.split()[0] for names in UNITS for spelling in names.split()}
MARK = re.compile(
    rf"(?P<kind>unit|base|time)-(?P<name>(?<=unit-)(?:{'|'.join(set(_SPELLINGS.values()))})|"
    r"(?<=base-)\d+-[\da-f]+(?:\.[\da-f]+)?|(?<=time-)\d+-\d+)"
)
"""Names of symbols for a unit, a number in a base (``base-8-17``), or a time of day (``time-3-45``)."""
_WORDS = sorted((word for word in _SPELLINGS if len(word) > 1 and word not in {"in", "am"}), key=len, reverse=True)
_WORD = (
    rf"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?(?:{'|'.join(map(re.escape, _WORDS))})(?:es|s)?(?![A-Za-z])"
    r"(?:\s*\^\s*\{?[23]\}?)?"
)
_SCALES = {
    "dozen": "12",
    "hundred": "10^{2}",
    "thousand": "10^{3}",
    "million": "10^{6}",
    "billion": "10^{9}",
    "trillion": "10^{12}",
}
MEASURED = re.compile(
    rf"(?<=[\d}}])[\s~]*(?=[a-z])(?:(?P<scale>{'|'.join(_SCALES)})(?![a-z])\s*)?"
    rf"(?P<unit>{_WORD}(?:\s*(?:/|\bper\b)\s*(?:{_WORD}|[smhl]\b(?:\s*\^\s*\{{?[23]\}}?)?))*)?",
    re.IGNORECASE,
)
"""A unit or a word such as ``million`` in plain letters after a number."""
_NAMES = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_LATER = f"or|and|if|mod|base|where|when|for|times|less|more|not|{MONTHS}"
"""Words after a number that do not say what is counted."""
_TEXT = r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{"
_DOTS = r"\s*(?:\.{2,}|…|\\[lc]?dots)"
_PLAIN = str.maketrans({
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "≈": r"\approx ", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "∞": r"\infty ", "π": r"\pi ", "°": r"^\circ ", "％": "%", "²": "^2", "³": "^3", "½": r"\frac{1}{2}",
    "，": ",", "\u00a0": " ", "\u202f": " ", "\u2009": " ",
})  # fmt: skip


def readable(latex: str) -> str:
    """Return an answer in the notation that math-verify reads; reference answers and responses are treated alike.

    Texts longer than ``LONGEST`` stay unchanged.
    """
    if len(latex) > LONGEST:
        return latex
    text = latex.translate(_PLAIN)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.strip()


@cache
def size(unit: str) -> str:
    """Return a unit's size as an expression in the units used for comparing sizes."""
    number, of = next(value for names, value in UNITS.items() if names.split()[0] == unit)
    return f"({number})*({of})"


def _symbol(kind: str, *name: str) -> str:
    return rf"\text{{{kind}-{'-'.join(name)}}}"


def _fraction(match: re.Match[str]) -> str:
    whole, fixed, repeated = (re.sub(r"\D", "", match[name]) for name in ("whole", "fixed", "repeated"))
    numerator = int(whole + fixed + repeated) - int(whole + fixed or "0")
    return rf"\frac{{{numerator}}}{{{'9' * len(repeated)}{'0' * len(fixed)}}}"


def _mixed(match: re.Match[str]) -> str:
    whole, upper, lower = (int(match[number]) for number in (1, 2, 3))
    return rf"\frac{{{whole * lower + upper}}}{{{lower}}}"


def _number_in_base(match: re.Match[str]) -> str:
    base = match["base"] if match["base"].isdigit() else str(_NAMES.split("|").index(match["base"]) + 2)
    digits = match["digits"].lstrip("0") or "0"
    return _symbol("base", base, digits)


def _unit(words: str) -> str | None:
    """Return symbols for a unit such as ``km/h`` or ``square feet``; None for words that are not a unit."""
    found: list[str] = []
    power, over = 1, ""
    for word in re.findall(r"[A-Za-z.]+|[/\d]|\S", re.sub(r"[~\\,{}^*]|cdot", " ", words)):
        name = word.lower()
        if name in {"/", "per"}:
            over = "/"
        elif name in {"square", "sq", "sq.", "cubic", "cu", "cu."}:
            power = 2 if name.startswith("s") else 3
        elif name in {"2", "3", "squared", "cubed"} and found:
            found[-1] += "^2" if name in {"2", "squared"} else "^3"
        elif name in {"unit", "units"}:
            # The length of the unit does not matter, since the question does not give one.
            found.append(f"{over}1")
            power, over = 1, ""
        else:
            known = _known(word)
            if known is None:
                return None
            found.append(over + _symbol("unit", known) + (f"^{power}" if power > 1 else ""))
            power, over = 1, ""
    return "".join(found)


def _known(word: str) -> str | None:
    """Return the name of a unit; single capital letters differ from small ones, except for the litre's."""
    forms = [word, word.rstrip(".")] if len(word) == 1 and word != "L" else [word.lower(), word.lower().rstrip(".")]
    forms += [form.removesuffix(ending) for form in forms for ending in ("s", "es") if len(form) > 3]
    return next((_SPELLINGS[form] for form in forms if form in _SPELLINGS), None)


def _measured(match: re.Match[str]) -> str:
    scale, unit = match["scale"], match["unit"]
    if not scale and not unit:
        return match[0]
    return (rf"\cdot {_SCALES[scale.lower()]}" if scale else "") + (_unit(unit) or "" if unit else "")


def _text(match: re.Match[str]) -> str:
    """Return the meaning of a text after a number: a multiple, a unit, or only what is counted."""
    words = match["words"].strip(" ~.,")
    plain = MEASURED.match(f"1 {words}", 1)
    if plain and plain["scale"]:
        return _measured(plain)
    unit = _unit(words)
    if unit is not None:
        return "" if unit in {"", "1"} else unit + (match["power"] or "")
    counted = match["end"] is not None and not re.search(rf"\b(?:{_LATER})\b|\d", words, re.IGNORECASE)
    return "" if counted else match[0]


def _words(match: re.Match[str]) -> str:
    """Return several words, such as a date, as one text."""
    plain = re.sub(rf"{_TEXT}|[{{}}]", "", match[0])
    if re.fullmatch(r"[A-Za-z][\w ,.'-]*", plain) and " " in plain and re.search("[A-Za-z]{4}", plain):
        return rf"\text{{{re.sub('[^a-z0-9]', '', plain.lower())}}}"
    return match[0]


Replacement = str | Callable[[re.Match[str]], str]
_RULES: tuple[tuple[re.Pattern[str], Replacement], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Separators between groups of digits.
        (r"(?<=\d)(?:\{,\}|,?\\!|\\[, ]|~| )(?=\d{3}(?!\d))", ""),
        # Currency comes before its number, other units after it.
        (r"\\\$\s*(-?\d[\d.,]*)", r"\1\\text{ dollar}"),
        (r"€\s*(-?\d[\d.,]*)", r"\1\\text{ euro}"),
        # Anchors, Markdown marks and a text around a number say nothing about the value.
        (r"(?<!\\)\\[()\[\]]|(?<!\\)\$|^\s*\*\*|\*\*\s*$", ""),
        (r"(?<=[\w)])\*\*(?=[\w(])", "^"),
        (rf"{_TEXT}\s*(-?\d[\d.,/]*)\s*\}}", r"\1"),
        (rf"^\s*{_TEXT}[^{{}}]*(?:\bis|\babout|\bapproximately|\bequals|[:=])\s*\}}\s*(?=[-\d\\])", ""),
        # Commas within a single number do not make a list.
        (r"(?:^|(?<=[=<>\s-]))(\d{1,3}(?:,\d{3})+)(?=(?:\.\d+)?(?:[\s~]|\\,)*(?:\\text|\\math|\\?%|[a-z]{2}|,\s|$))",
         lambda match: match[1].replace(",", "")),
        (r"(?<!\\)\\[,;:! ]|\\q?quad|(?<!\\)~|\\thinspace", " "),
        # Repeating decimals are fractions.
        (r"(?<!\d)(?P<whole>\d*)\.(?P<fixed>\d*)\\(?:overline|bar|dot)\s*(?P<repeated>\{\d+\}(?:\d*\\dot\s*\{?\d\}?)?|\d)",
         _fraction),
        (r"(?<!\d)(?P<whole>\d+)\.(?P<fixed>\d*)\((?P<repeated>\d+)\)", _fraction),
        (rf"(?<!\d)(?P<whole>\d+)\.(?P<fixed>\d{{0,20}}?)(?P<repeated>\d)(?P=repeated){{2,}}{_DOTS}", _fraction),
        (rf"(?<!\d)(?P<whole>\d+)\.(?P<fixed>\d{{0,20}}?)(?P<repeated>\d{{2,20}}?)(?P=repeated)+{_DOTS}", _fraction),
        # Mixed fractions are sums, also with a unit after them.
        (r"(?<![\d.^_{}])(\d+)\s*\\[dtc]?frac\s*\{(\d+)\}\s*\{(\d+)\}", _mixed),
        (r"(?<![\d.^_{}])(\d+)\s*\\[dtc]?frac\s*(\d)\s*(\d)(?!\d)", _mixed),
        (r"(?<![\d.^_{}/])(\d+)\s+(\d+)/(\d+)(?![\d/])", _mixed),
        # Two adjacent numbers are a pair, and a factor before a bracket is not a mixed fraction.
        (r"^\s*-?\d+(?:\.\d+)?(?:\s+-?\d+(?:\.\d+)?)+\s*$", lambda match: ",".join(match[0].split())),
        (r"(?<![\d_^.\\A-Za-z])(?<![_^]\{)(\d+(?:\.\d+)?)\s*(?=\(|\\left\s*\()", r"\1\\cdot "),
        # Functions and letters without a backslash.
        (r"(?<![A-Za-z\\{])(pi|theta|exp|sin|cos|tan|ln|log)(?![A-Za-z])", r"\\\1 "),
        # Powers of ten.
        (r"(?<![A-Za-z\\\d.])(\d+(?:\.\d+)?)[eE](-?)\+?(\d+)(?![\w.])", r"\1\\times 10^{\2\3}"),
        (r"(?<=\d)\s*(?:\*|x)\s*10\s*(?:\^|\*\*)", r"\\times 10^"),
        # The base of a number belongs to it.
        (rf"_\s*\{{\s*{_TEXT}(?:base\s*)?(\w+)\}}\s*\}}|_\s*{_TEXT}(?:base\s*)?(\w+)\}}", r"_{\1\2}"),
        (r"(?<![\w.\\^{])(?P<open>\()?(?P<digits>\d[\dA-F]*(?:\.[\dA-F]+)?)(?(open)\))\s*_\s*(?P<brace>\{)?\s*\(?"
         rf"(?P<base>[2-9]|[1-9]\d|{_NAMES})\)?(?(brace)\s*\}})(?!\w)", _number_in_base),
        # Ratios of three terms, and times of day.
        (r"^\s*(\d+)\s*:\s*(\d+)\s*:\s*(\d+)\s*$", r"(\1/\3,\2/\3,1)"),
        (r"(?<![\d:])(\d{1,2}):([0-5]\d)(?![\d:])", lambda match: _symbol("time", match[1], match[2])),
        # Units, percent and what is counted.
        (rf"\\[dt]?frac\s*\{{\s*{_TEXT}([^{{}}]*)\}}\s*\}}\s*\{{\s*{_TEXT}([^{{}}]*)\}}\s*\}}", r"\\text{\1/\2}"),
        (r"\^\s*\{?\s*\\circ\s*\}?\s*(?:(?:\\text|\\mathrm)\s*\{\s*)?([CF])(?![A-Za-z])\}?",
         lambda match: _symbol("unit", "celsius" if match[1] == "C" else "fahrenheit")),
        (r"\^\s*\{?\s*\\circ\s*\}?", lambda _: _symbol("unit", "degree")),
        (r"\s*\\?%", lambda _: _symbol("unit", "hundredth")),
        (rf"(?<=[\d)}}/])\s*{_TEXT}(?P<words>(?!unit-|base-|time-)[^{{}}]*)\}}(?P<power>\s*\^\s*\{{?\d\}}?)?"
         r"(?P<end>[\s.,;]*$)?", _text),
        (MEASURED, _measured),
        (r"(?<=\d)\s+([mshglL])[\s.,;]*$", lambda match: _symbol("unit", match[1].lower())),
        (rf"(?<=[\d}}])\s+(?!(?i:{_LATER})\b)[a-z]{{4,}}(?:\s+[a-z]+)*[\s.]*$", ""),
        (r"\\math(?:rm|bf|it)\s*\{([A-Za-z])\}", r"\1"),
        # Punctuation after the answer is not part of it.
        (r"[\s.,;:\\]+$", ""),
        (r"[\s.,;:]+\}$", "}"),
        (r"^.+$", _words),
    )
)  # fmt: skip
