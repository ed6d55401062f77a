"""A process that is killed while it generates, or before it has charged what it generated, leaves nothing unpaid."""

import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.budget import History, LedgerError
from isocompute.budget.ledger.limits import Limits
from isocompute.budget.trl import Attachment, Passes

BATCH, EVERY = 4, 2


@pytest.fixture(autouse=True)
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a callback alone is asked, and which takes longer to load than all of these tests."""
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=SimpleNamespace))


class Killed(BaseException):
    """The process would be dead by now."""


class Trainer:
    """What an attachment asks of a ``GRPOTrainer``: one pass a step, a generation each."""

    def __init__(self, step: int, dies: str, sampled: list[int]) -> None:
        self.accelerator = SimpleNamespace(num_processes=1, is_main_process=True)
        self.args = SimpleNamespace(gradient_accumulation_steps=1, steps_per_generation=1, ignore_data_skip=False)
        self.model, self.state = SimpleNamespace(training=True), SimpleNamespace(global_step=step)
        self.num_iterations = self.current_gradient_accumulation_steps = 1
        self._train_batch_size, self._step, self._buffered_inputs = BATCH, 0, None
        self.eval_dataset, self.dies, self.sampled = None, dies, sampled
        self.log = self.add_callback = lambda *_: None

    def set_initial_training_values(self, *_: Any) -> tuple[int, ...]:
        return 1, 99, 0, 0, 0, 99, 0

    def _generate(self, prompts: list[str]) -> tuple[Any, Any, None]:
        self.sampled.append(len(prompts))
        if self.dies == "while it generates":
            raise Killed
        return [[1]] * len(prompts), [[2, 3]] * len(prompts), None


def live(path: Path, step: int, steps: int, dies: str, sampled: list[int]) -> int:
    """Train for some steps, then die in the next; returns the step of the last checkpoint."""
    trainer = Trainer(step, "", sampled)
    budget = Attachment(trainer, path, run_id="r", limits=Limits(rollouts=10_000), devices=None)
    control = SimpleNamespace(should_training_stop=False)
    charge = budget._charge

    def charging(*given: Any, **named: Any) -> None:
        if trainer.dies == "before it charges":
            raise Killed
        charge(*given, **named)
        if trainer.dies == "when it has charged":
            raise Killed

    budget._charge = charging  # type: ignore[method-assign]
    budget.begin(trainer.args, trainer.state, control, train_dataloader=None)
    with suppress(Killed):
        for number in range(steps + bool(dies)):
            trainer.dies = dies if number == steps else ""
            budget.begin_step()
            trainer._generate(["?"] * BATCH)
            trainer._step += 1
            trainer.state.global_step += 1
            budget.end_step(trainer.args, trainer.state, control)
    # Its lock ends with a process.
    budget.close()
    return trainer.state.global_step // EVERY * EVERY


DEATHS = st.sampled_from(["while it generates", "before it charges", "when it has charged"])


@given(st.lists(st.tuples(st.integers(0, 3), DEATHS), max_size=4))
@settings(max_examples=15)
def test_paid_rollouts_are_those_sampled_however_often_a_process_is_killed(lives: list[tuple[int, str]]) -> None:
    sampled: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        path, step = Path(folder) / "run.ledger", 0
        for steps, dies in lives:
            step = live(path, step, steps, dies, sampled)
        step = live(path, step, 2, "", sampled)
        totals = History.read(path).totals()
        assert (totals.used + totals.lost_training).rollouts == sum(sampled)
        # The canonical ledger is that of the steps taken, whatever was lost.
        assert totals.used.rollouts == BATCH * step


def test_a_note_that_is_damaged_is_named(tmp_path: Path) -> None:
    live(tmp_path / "run.ledger", 0, 2, "", [])
    (tmp_path / "run.ledger.dispatched").write_text("four\n")
    with pytest.raises(LedgerError, match=r"run\.ledger\.dispatched"):
        live(tmp_path / "run.ledger", 2, 1, "", [])


def test_what_a_removed_ledger_left_is_not_charged_to_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    live(path, 0, 0, "while it generates", [])
    path.unlink()
    live(path, 0, 2, "", [])
    assert History.read(path).totals().paid.rollouts == 2 * BATCH


few = st.integers(1, 6)


@given(accumulation=few, every=few, batches=few, resumed=st.integers(0, 20), epochs=st.integers(1, 4))
def test_generations_and_their_shares_are_those_of_the_trainers_loop(accumulation, every, batches, resumed, epochs):
    epoch_passes = batches * every
    epoch_steps = -(-epoch_passes // accumulation)
    passes = Passes(accumulation=accumulation, every=every, epoch_passes=epoch_passes, epoch_steps=epoch_steps)
    # The loop of Trainer._run_epoch from a checkpoint on, with the condition of GRPOTrainer._prepare_inputs.
    done, filled, expected, loop = 0, False, [], []
    for step in range(resumed, resumed + epochs * epoch_steps):
        place = step % epoch_steps
        of_step = min(accumulation, epoch_passes - place * accumulation)
        assert passes.of_step(place) == of_step
        expected.append(passes.generations(place, done=done, filled=filled))
        for _ in range(of_step):
            if done % every == 0 or not filled:
                loop.append({})
                filled = True
            loop[-1][step] = loop[-1].get(step, 0) + 1
            done += 1
    predicted = [(resumed + k, shares) for k, made in enumerate(expected) for shares in made]
    # The last one is used beyond the end of the loop.
    assert len(predicted) == len(loop)
    for (step, shares), used in zip(predicted[:-1], loop[:-1], strict=True):
        assert dict(enumerate(shares, step)) == used
        assert sum(shares) == every
    step, shares = predicted[-1]
    assert sum(shares) == every
    assert all(share >= loop[-1].get(step + k, 0) for k, share in enumerate(shares))
