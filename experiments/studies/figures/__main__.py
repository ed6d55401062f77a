"""Command line of the figures: ``python -m experiments.studies.figures playbook-13``.

Trains what is missing of a figure (killed, it goes on), draws it in ``docs/figures``, and prints one paragraph: what
the paper shows, what came out here with its interval, and what was chosen on the same data. Without a name the cells
and the cost of every figure are listed; ``--all`` makes every figure, ``--gallery`` the page ``docs/figures.md`` from
the tables alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import ExperimentError
from ...running.cluster import exit_code, install
from . import cells, page
from .figure import Figure, figure_of, names
from .reading import paragraph


def one(figure: Figure, work: Path, results: Path, pictures: Path) -> Iterator[str]:
    """Train what is missing, draw and say what came out."""
    for part in page.parts_of(figure):
        yield from cells.train(part, work, results)
    pictures.mkdir(parents=True, exist_ok=True)
    page.draw(figure, pictures / figure.name, results)
    yield f"{pictures / figure.name}.svg"
    yield f"{figure.title}. {paragraph(figure, results)}"


def at_papers_scale(figure: Figure) -> Iterator[str]:
    """Write the presets at the paper's scale, and print their cells and GPU-hours."""
    from ...stages import plan
    from . import paper

    for part in page.parts_of(figure):
        path, presets = paper.write(part)
        for preset in presets:
            plan.run(preset, path=path)
        yield from paper.advice(part, path, presets)


def said(given: argparse.Namespace) -> Iterator[str]:
    """Do what is asked, line by line."""
    if given.gallery:
        yield from page.write()
    elif given.resolution:
        yield from page.lines_of(list(page.resolvables()))
    elif given.name is None and not given.all:
        rows, hours = page.costs()
        yield from page.lines_of([["figure", "", "cells", "own", "CPU-min"], *rows])
        yield f"in all about {hours:.1f} CPU-hours"
    elif given.preset and given.name:
        yield from at_papers_scale(figure_of(given.name))
    elif given.preset:
        raise ExperimentError("--preset needs the name of one figure")
    else:
        os.nice(19)
        asked = [figure_of(given.name)] if given.name else [each for each in map(figure_of, names()) if not each.needs]
        for figure in asked:
            if given.micro and figure.page_of:
                continue
            own = figure.micro() if given.micro else figure
            folder = given.work / "micro" if given.micro else given.work
            results = folder / "results" if given.micro else cells.RESULTS
            yield from one(own, folder, results, folder if given.micro else page.PICTURES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.figures", description=__doc__)
    parser.add_argument("name", nargs="?", help="the figure, such as playbook-13 or scalerl-7")
    parser.add_argument("--all", action="store_true", help="every figure that can run here, one after the other")
    parser.add_argument("--micro", action="store_true", help="two short cells of each kind: whether everything runs")
    parser.add_argument("--gallery", action="store_true", help="write docs/figures.md from the committed tables")
    parser.add_argument("--resolution", action="store_true", help="the smallest effects that figures can resolve")
    parser.add_argument("--preset", choices=["paper"], help="print and write its cells at the paper's scale")
    parser.add_argument("--work", type=Path, default=cells.WORK, help="where cells keep their files")
    given = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    def run() -> None:
        for line in said(given):
            print(line, flush=True)

    return exit_code(run)


if __name__ == "__main__":
    install()
    sys.exit(main())
