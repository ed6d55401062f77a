"""Which errors of Ray are infrastructure: every class that Ray has, alone and as what a task failed with."""

import inspect
from importlib import import_module

import pytest
import ray.exceptions
from isocompute.learner.errors import LearnerError, RankError
from isocompute.rollout.contract.deaths import death
from isocompute.rollout.errors import EngineError, RolloutError

EVERY = [
    kind
    for kind in vars(ray.exceptions).values()
    if isinstance(kind, type) and issubclass(kind, ray.exceptions.RayError)
]
"""``RayTaskError`` among them."""
OF_CODE = {"RayTaskError", "CrossLanguageError", "UserCodeException"}

OUT_OF_MEMORY = """1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, \
ID: 73cc38cf) was 14.11GB used / 23.54GB limit (0.599512)
OOM kill reason: Memory usage 15112216576B exceeded threshold of 252765008B (1.0% of 25276502016B limit)
Selected to kill: (Actor(7e70): task name=A.__init__, pid=10380, actual memory used=0.04GB, worker ID=109c)
Top 10 memory users: PID	MEM(GB)	COMMAND
9150	12.86	python /another/program.py
9870	0.14	python -m pytest
Refer to the documentation on how to address the out of memory issue.
"""


def made(kind: type) -> Exception:
    """An error of a class, each argument that it cannot do without a text."""
    needed = [
        p
        for p in inspect.signature(kind.__init__).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"
    ]
    if kind.__name__ == "RayTaskError":
        return kind("train", "Traceback: it broke", ValueError("it broke"))
    if kind.__name__ == "CrossLanguageError":
        return kind.__new__(kind, "it broke")
    return kind(*[None if p.name == "actor_id" else "00" for p in needed])


def failed(cause: Exception) -> Exception:
    """What ``ray.get`` raises for a task that ended with an error."""
    error = ray.exceptions.RayTaskError("train", "Traceback: it ended", cause)
    return error.as_instanceof_cause()


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_error_of_ray_but_that_of_a_task_is_infrastructure(kind: type) -> None:
    error = made(kind)
    if kind.__name__ in OF_CODE:
        assert death(error) is None
    else:
        why = death(error)
        assert why
        assert "\n" not in why
        assert len(why) < 500


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in EVERY if k is not ray.exceptions.RayError], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_task_that_infrastructure_ended_is_infrastructure_at_any_depth(kind: type, depth: int) -> None:
    error = made(kind)
    for _ in range(depth):
        error = failed(error)
    assert (death(error) is None) == (kind.__name__ in OF_CODE)


@pytest.mark.parametrize(
    "cause",
    [
        ValueError("no"),
        MemoryError(),
        OSError(28, "No space left"),
        RolloutError("no"),
        LearnerError("no"),
        KeyError("x"),
        TimeoutError(),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_an_error_of_the_code_that_was_called_is_none(cause: Exception) -> None:
    assert death(cause) is None
    assert death(failed(cause)) is None
    assert death(failed(failed(cause))) is None


def test_an_error_that_cannot_be_pickled_is_of_the_code_though_ray_puts_its_own_in_the_place() -> None:
    class UnpicklableError(Exception):
        def __reduce__(self) -> str:
            raise TypeError("not this one")

    error = ray.exceptions.RayTaskError("train", "Traceback: it broke", UnpicklableError())
    assert type(error.cause) is ray.exceptions.RayError
    assert death(error) is None


def test_an_actor_whose_constructor_raised_did_not_die() -> None:
    broken = ray.exceptions.RayTaskError("A.__init__", "Traceback: it broke", ValueError("it broke"))
    assert death(ray.exceptions.ActorDiedError.from_task_error(broken)) is None


@pytest.mark.parametrize("kind", [EngineError, RankError])
def test_engines_and_ranks_that_died_are_infrastructure_for_whoever_called_their_worker(kind: type) -> None:
    error = kind("rank 1 of 2 died before it could update (ip 192.0.2.2)")
    assert death(error) == str(error)
    assert death(failed(failed(error))) == str(error)


def test_lack_of_memory_names_node_memory_and_the_settings_that_help() -> None:
    said = death(failed(ray.exceptions.OutOfMemoryError(OUT_OF_MEMORY))) or ""
    for expected in (
        "node 192.0.2.2",
        "14.11GB used / 23.54GB limit",
        "this worker used 0.04GB",
        "process 9150 used 12.86GB",
        "fewer workers",
        "RAY_memory_usage_threshold",
    ):
        assert expected in said, expected


def test_a_process_that_was_killed_names_its_node() -> None:
    text = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: 10332\n\tip: 192.0.2.2\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) …"
    )
    error = ray.exceptions.RayActorError("00", text)
    assert death(error) == (
        "RayActorError on node 192.0.2.2: The actor is dead because its worker process has died. Where the kernel "
        "killed it for its memory (dmesg says so), fewer workers on the node help"
    )


@pytest.mark.parametrize("package", ["budget", "rollout", "learner", "frontier"])
def test_every_package_tells_them_apart_alike_and_without_ray(package: str) -> None:
    own = import_module(f"isocompute.{package}.contract.deaths")
    assert own.death(ray.exceptions.WorkerCrashedError())
    assert "ray" not in vars(own)
