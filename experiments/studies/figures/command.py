"""The command ``python -m experiments figure``.

Trains what is missing of a figure (killed, it goes on), draws it in ``docs/figures``, and prints one paragraph: what
the paper shows, what came out here with its interval, and what was chosen on the same data. Without a name the cells
and the cost of every figure are listed; ``--all`` makes every figure, ``--gallery`` the page ``docs/figures.md`` from
the tables alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from ...errors import ExperimentError
from . import cells, page
from .figure import Figure, figure_of, names
from .reading import came_out, paragraph


def one(figure: Figure, work: Path, results: Path, pictures: Path) -> Iterator[str]:
    """Train what is missing, draw and say what came out."""
    for part in page.parts_of(figure):
        yield from cells.train(part, work, results)
    pictures.mkdir(parents=True, exist_ok=True)
    done = cells.read(results)
    page.draw(figure, pictures / figure.name, done)
    yield f"{pictures / figure.name}.svg"
    yield f"{figure.title}. {paragraph(figure, done, came_out(figure, done))}"


def at_papers_scale(figure: Figure) -> Iterator[str]:
    """Write the presets at the paper's scale, and print their cells and GPU-hours."""
    from ...stages import plan
    from . import paper

    for part in page.parts_of(figure):
        path, presets = paper.write(part)
        for preset in presets:
            plan.run(preset, path=path)
        yield from paper.advice(part, path, presets)


def lines(given: argparse.Namespace) -> Iterator[str]:
    """Do what is asked, line by line."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sum(map(bool, (given.name, given.all, given.gallery, given.resolution))) > 1:
        raise ExperimentError("give one of a figure, --all, --gallery and --resolution")
    if given.micro and (given.scale or not (given.name or given.all)):
        raise ExperimentError("--micro trains a figure, or --all: name one")
    if given.gallery:
        yield from page.write()
    elif given.resolution:
        yield from page.lines_of(list(page.resolvables()))
    elif given.scale and not given.name:
        raise ExperimentError("--preset needs the name of one figure")
    elif given.name is None and not given.all:
        rows, hours = page.costs()
        yield from page.lines_of([["figure", "", "cells", "own", "CPU-min"], *rows])
        yield f"in all about {hours:.1f} CPU-hours"
    elif given.scale:
        yield from at_papers_scale(figure_of(given.name))
    else:
        os.nice(19)
        work = given.work or cells.WORK
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExperimentError(f"--work {work}: cannot be a folder ({error.strerror})") from None
        asked = [figure_of(given.name)] if given.name else [each for each in map(figure_of, names()) if not each.needs]
        for figure in asked:
            if given.micro and figure.page_of:
                continue
            own = figure.micro() if given.micro else figure
            folder = work / "micro" if given.micro else work
            results = folder / "results" if given.micro else cells.RESULTS
            yield from one(own, folder, results, folder if given.micro else page.PICTURES)
