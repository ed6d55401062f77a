"""Logged metrics of runs in an MLflow store, as any framework logged them."""

from __future__ import annotations

from collections.abc import Iterator

from ...contract import tracking
from ...contract.errors import TrackingError


def histories(source: str) -> Iterator[tuple[str, list[tuple[int, dict[str, float]]], dict[str, str]]]:
    """Logged metrics and parameters of runs.

    Args:
        source: ``runs:/RUN_ID``, ``mlflow:EXPERIMENT``, or a tracking URI for every run there.

    Yields:
        Name of the run, which holds its id; its metrics by step, in the order of logging; its parameters.

    Raises:
        TrackingError: No such run or experiment, or it holds no run.
    """
    client, runs = tracking.runs_of(source)
    if not runs:
        place = "store" if tracking.is_store(source) else "experiment"
        raise TrackingError(f"{source}: the {place} holds no run")
    for run in runs:
        run_id = str(run.info.run_id)
        with tracking.answering(source):
            points = [
                (int(point.timestamp), int(point.step), key, float(point.value))
                for key in run.data.metrics
                for point in client.get_metric_history(run_id, key)
            ]
        rows = [(step, {key: value}) for _, step, key, value in sorted(points)]
        name = f" ({run.info.run_name})" if run.info.run_name else ""
        yield f"runs:/{run_id}{name}", rows, dict(run.data.params)
