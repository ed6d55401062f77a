"""``signal``: the share of groups with signal by n, from a pass rate, a distribution of pass rates, or a run's log."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from ..contract import tables
from ..contract.command_line import new_file
from ..errors import BudgetError, reason
from ..planning.diagnosis import Series
from ..planning.signal import SPREAD, share_alike, share_counted, share_spread, spread_of
from ..trainers.course import course_of, plain_course
from ..trainers.doctor import settings_of
from ..trainers.settings import configuration, parse_value
from .text import add_log_arguments, aligned_table, live_log, number, only_log, whole_numbers, write_json

SIZES, MOST = (2, 4, 8, 16, 32, 64, 128), 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Pass rates of problems, as far as they are known.

    Attributes:
        share: The share of groups of n that have signal.
        said: The evidence for it.
        counted: The largest n for which the share follows from counts alone; None if nothing was counted.
        logged: For parts of a run: the mean reward, the logged share with signal, and the share predicted from the
            reward, first for identical problems and then for the assumed distribution of pass rates.
    """

    mean: float
    share: Callable[[int], float]
    said: str
    counted: int | None = None
    logged: Mapping[str, tuple[float, float | None, float, float]] = field(default_factory=dict)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "signal",
        help="how many groups of n responses are neither all right nor all wrong, by n",
        description="A group, the n responses to one problem, has signal where it is neither all right nor all "
        "wrong, so that it can teach: of pass rate p, 1 - p^n - (1 - p)^n of all groups do. Their share, averaged "
        "over problems, by n; of a log, beside what it logged. One pass rate does not say how problems differ: "
        "shares are then given for a spread that is named, and for problems that are all alike, which have the most.",
        epilog="example: isocompute-budget signal --pass-rate 0.3\n"
        "example: isocompute-budget signal --histogram rates.csv\n"
        "example: isocompute-budget signal --pass-rates outputs/pass_rates.parquet --n 4,6,8\n"
        "example: isocompute-budget signal runs/grpo",
    )
    parser.add_argument("log", nargs="?", metavar="LOG", help="a run's log: folder, file, runs:/ID or tracking URI")
    parser.add_argument("--pass-rate", metavar="P", help="mean pass rate of the problems, such as 0.3")
    said = f"a + b of the Beta distribution of pass rates, with --pass-rate (default: {SPREAD:g}, uniform at 0.5)"
    parser.add_argument("--spread", type=number, metavar="S", help=said)
    said = "CSV of pass_rate and problems, and of samples where so many responses measured the rate"
    parser.add_argument("--histogram", type=Path, metavar="FILE", help=said)
    said = "a pass_rates table: Parquet, CSV, a folder, mlflow:EXPERIMENT or runs:/RUN_ID; its last step is read"
    parser.add_argument("--pass-rates", metavar="TABLE", help=said)
    parser.add_argument("--n", type=whole_numbers, default=SIZES, metavar="N,…", help="group sizes (default: 2 to 128)")
    add_log_arguments(parser)
    parser.add_argument("--json", type=new_file, metavar="FILE", help="also write the figures")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the shares by n."""
    given = [arguments.log, arguments.pass_rate, arguments.histogram, arguments.pass_rates]
    if sum(each is not None for each in given) != 1:
        raise BudgetError("signal wants one of a log, --pass-rate, --histogram and --pass-rates")
    if arguments.spread is not None and (arguments.pass_rate is None or arguments.spread <= 0):
        raise BudgetError("--spread goes with --pass-rate, and must be above 0")
    if not all(2 <= n <= MOST for n in arguments.n):
        raise BudgetError(f"--n is {', '.join(map(str, arguments.n))}; group sizes must be from 2 to {MOST:,}")
    if arguments.pass_rate is not None:
        rates = _of_mean(arguments.pass_rate, arguments.spread or SPREAD)
    elif arguments.histogram is not None:
        rates = _of_counts(_read_histogram(arguments.histogram), str(arguments.histogram))
    elif arguments.pass_rates is not None:
        rates = _of_table(arguments.pass_rates)
    else:
        rates = _of_log(arguments)
    yield rates.said
    if rates.logged:
        yield ""
        shown = [[part, *("-" if v is None else f"{v:.1%}" for v in row)] for part, row in rates.logged.items()]
        predicted = ("if all problems are alike", f"if a + b = {SPREAD:g}")
        yield from aligned_table(["", "mean reward", "with signal, logged", *predicted], shown)
    yield ""
    rows = [(n, rates.share(n), share_alike(rates.mean, n)) for n in sorted({*arguments.n})]
    cells = []
    for n, share, alike in rows:
        least = "≥ " if rates.counted is not None and n > rates.counted else ""
        cells.append([n, f"{least}{share:.1%}", f"{least}{1000 * share / n:.1f}", f"{alike:.1%}"])
    yield from aligned_table(["n", "groups with signal", "per 1,000 rollouts", "all problems alike"], cells)
    if arguments.json is not None:
        shares = [dict(zip(("n", "share", "share_alike"), row, strict=True)) for row in rows]
        document = {"mean": rates.mean, "rests_on": rates.said, "counted_up_to": rates.counted, "logged": rates.logged}
        write_json({**document, "shares": shares}, arguments.json)


def _beta(mean: float, spread: float) -> str:
    return f"Beta({mean * spread:.3g}, {(1 - mean) * spread:.3g})"


def _of_mean(text: str, spread: float) -> Rates:
    mean = parse_value(text)
    if not isinstance(mean, float) or not 0 < mean < 1:
        raise BudgetError(
            f"the pass rate is {text:.40}; it must be a share such as 0.3: at 0 and at 1 no group has signal"
        )
    said = f"assumed: pass rates are {_beta(mean, spread)}, which --spread changes; a histogram of them would say it"
    return Rates(mean=mean, share=lambda n: share_spread(mean, n, spread), said=said)


Counts = list[tuple[float, int, int | None]]
"""For each kind of problem: its pass rate, the number of problems, and the responses that measured the rate."""


def _of_counts(counts: Counts, where: str) -> Rates:
    problems = sum(number for _, number, _ in counts)
    if not problems:
        raise BudgetError(f"{where}: holds no problem that was answered")
    counted = min((s for _, _, s in counts if s is not None), default=None)

    def mean(n: int) -> float:
        of_each = (share_alike(p, n) if s is None else share_counted(round(p * s), s, n) for p, _, s in counts)
        return sum(each * number for each, (_, number, _) in zip(of_each, counts, strict=True)) / problems

    average = sum(p * number for p, number, _ in counts) / problems
    how = "taken as the problems' own"
    if counted is not None:
        how = f"of {counted} responses to each; beyond n = {counted} shares are at least what is said, on average"
    return Rates(
        mean=average,
        # A larger group has signal whenever a smaller one has.
        share=lambda n: max(mean(n), mean(min(n, counted or n))),
        said=f"{where}: {problems:,} problems, mean pass rate {average:.3g}, {how}",
        counted=counted,
    )


def _read_histogram(path: Path) -> Counts:
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise BudgetError(f"{path}: cannot be read ({reason(error)})") from None
    if not rows or not {"pass_rate", "problems"} <= rows[0].keys():
        raise BudgetError(f"{path}: the first row must name the columns pass_rate and problems, and may name samples")
    found: Counts = []
    for line, row in enumerate(rows, 2):
        try:
            rate, problems = float(row["pass_rate"]), int(row["problems"])
            samples = int(row["samples"]) if row.get("samples") else None
        except (TypeError, ValueError):
            raise BudgetError(f"{path}: row {line} has a cell that is not the number it must be") from None
        uneven = samples is not None and (samples < 2 or abs(rate * samples - round(rate * samples)) > 0.01)
        if not 0 <= rate <= 1 or problems < 0 or uneven:
            of = "" if samples is None else f" of {samples} samples"
            raise BudgetError(f"{path}: row {line}: a pass rate of {rate:g}{of} for {problems} problems is impossible")
        found.append((rate, problems, samples))
    return found


def _of_table(source: str) -> Rates:
    frame = tables.read(source, "pass_rates")
    runs, step = frame["run_id"].unique().sort().to_list(), max(frame["step"].to_list())
    if len(runs) > 1:
        raise BudgetError(
            f"{source}: holds the pass rates of {len(runs)} runs, {runs[0]} and others: give those of one"
        )
    last = frame.filter(frame["step"] == step)
    pairs = zip(last["successes"].to_list(), last["samples"].to_list(), strict=True)
    counted = [(right / samples, 1, samples) for right, samples in pairs if samples]
    return _of_counts(counted, f"{source}, step {step!s}")


def _of_log(arguments: argparse.Namespace) -> Rates:
    """The share that a log reports, and the distribution of pass rates that explains it."""
    source, given, live = arguments.log, dict(arguments.constants), live_log(arguments.log, arguments)
    log = only_log(live)
    if log is None:
        course = plain_course(source)
    else:
        course = course_of(log, live.trainer, settings=settings_of(log, configuration(arguments.config), given))
    if not course.rates:
        why = "rewards are not all between 0 and 1" if course.training else "no reward of training is read"
        raise BudgetError(f"{source}: {why}, so that pass rates are not known")
    n = course.n if log else parse_value(given.get("n", ""))
    if not isinstance(n, int) or n < 2:
        how = "--config, or --set by the trainer's own name" if log else "--set n=NUMBER"
        raise BudgetError(f"{source}: n is {n or 'not known'}, and a group has 2 or more; say it with {how}")
    logged = {}
    for name, fifth in (("first fifth", 0), ("last fifth", 4)):
        reward, equal = fmean(_part(course.training, fifth)), _part(course.without_signal, fifth)
        had = 1 - fmean(equal) if equal else None
        logged[name] = (reward, had, share_alike(reward, n), share_spread(reward, n))
    mean, had, *_ = logged["last fifth"]
    mean, spread, whose = min(max(mean, 1e-6), 1 - 1e-6), SPREAD, "assumed, since the share with signal is not logged"
    if had is not None:
        spread, whose = spread_of(mean, n, had), "with which groups of n have the share of its last fifth"
    said = f"n = {n}; at its end, pass rates are {_beta(mean, spread)}, {whose}"
    return Rates(mean=mean, share=lambda size: share_spread(mean, size, spread), said=said, logged=logged)


def _part(series: Series, fifth: int) -> list[float]:
    """The values of a fifth of a series."""
    values, first = [value for _, value in series], fifth * len(series) // 5
    return values[first : max((fifth + 1) * len(series) // 5, first + 1)]
