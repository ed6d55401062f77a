"""What became of runs whose course is known."""

import random

import pytest
from isocompute.budget.planning.diagnosis import LEAST_ENTRIES, Course, diagnose, trend
from simulated_runs import HEALTHY, run, states


@pytest.mark.parametrize(("entries", "shared"), [(15, 0.0), (30, 0.5), (90, 0.8)])
def test_few_healthy_runs_are_said_to_have_fallen_and_most_collapses_are_found(entries, shared):
    found = states(HEALTHY.values(), entries, shared, 100, random.Random(1))
    assert found["collapsed"] <= 0.01 * found.total()
    assert found["fell"] <= 0.02 * found.total()
    assert found["plateaued"] <= 0.25 * found.total()  # Only those that level off.
    lost = states([HEALTHY["levels off"]], entries, shared, 100, random.Random(2), fall=0.6)
    assert lost["collapsed"] >= 85


@pytest.mark.parametrize(
    ("shape", "states"), [("rises", {"rising"}), ("levels off", {"plateaued"}), ("flat", {"never rose"})]
)
def test_what_hardly_has_noise_is_told_apart(shape, states):
    rewards = run(HEALTHY[shape], 200, 0.004, 0.0, random.Random(3))
    assert {trend(rewards).state} == states


def test_a_level_and_its_noise_do_not_depend_on_the_unit_or_the_steps():
    rewards = run(HEALTHY["levels off"], 90, 0.03, 0.5, random.Random(4), fall=0.7)
    other = trend([(50 * step, 10 * reward) for step, reward in rewards])
    found = trend(rewards)
    assert (other.peak, other.end, other.noise) == pytest.approx([10 * v for v in (found.peak, found.end, found.noise)])
    assert other.fell_at == 50 * found.fell_at == 50 * 63


def level(values):
    return list(enumerate(values, 1))


def collapsed(**more):
    rng = random.Random(5)
    return Course(training=run(HEALTHY["levels off"], 60, 0.02, 0.0, rng, fall=0.5), rates=True, **more)


def test_a_collapse_with_a_jump_beside_it_is_put_down_to_the_rate():
    norm = level([1.0 + 0.1 * (k % 3) for k in range(29)] + [9.0] * 31)
    found = diagnose(collapsed(others={"gradient norm": norm}))
    assert found.verdict == "collapsed, rate too high"
    assert "gradient norm 1.1 → 9" in found.findings["learning rate"]
    assert found.change.startswith("the rate: halve it, and go on from a checkpoint up to step 2")


def test_a_collapse_beside_which_nothing_moved_is_not():
    found = diagnose(collapsed(others={"entropy": level([0.5, 0.6] * 30), "KL": level([0.01] * 60)}))
    assert found.verdict == "collapsed"
    assert found.findings["learning rate"].startswith("cannot say")
    assert found.change.startswith("cannot say")


def test_an_entropy_that_vanishes_is_a_jump():
    entropy = level([0.5] * 30 + [0.01] * 30)
    assert "entropy 0.5 → 0.01" in diagnose(collapsed(others={"entropy": entropy})).findings["learning rate"]


@pytest.mark.parametrize(("reward", "change"), [(0.02, "n: "), (0.97, "D: ")])
def test_groups_that_become_equal_are_out_of_signal_for_want_of_successes_or_of_failures(reward, change):
    rng = random.Random(6)
    rewards = level([reward + 0.005 * rng.gauss(0, 1) for _ in range(60)])
    equal = level([min(0.97, 0.3 + 0.02 * k) for k in range(60)])
    found = diagnose(Course(training=rewards, without_signal=equal, rates=True, n=8))
    assert found.verdict == "out of signal"
    assert found.change.startswith(change)
    # Where it is not logged, the mean reward bounds it.
    assert diagnose(Course(training=rewards, rates=True, n=4)).verdict == "out of signal"
    assert diagnose(Course(training=rewards, rates=True, n=512)).verdict != "out of signal"


def test_training_that_rises_without_evaluations_after_many_epochs_is_out_of_data():
    training = run(HEALTHY["rises"], 60, 0.01, 0.0, random.Random(7))
    held_out = run(HEALTHY["levels off"], 60, 0.005, 0.0, random.Random(8))
    assert diagnose(Course(training=training, evaluations=held_out, epochs=12.0)).verdict == "out of data"
    assert diagnose(Course(training=training, evaluations=held_out, epochs=0.8)).verdict == "plateaued"
    assert diagnose(Course(training=training, evaluations=training, epochs=12.0)).verdict == "still rising"
    assert diagnose(Course(training=training, epochs=12.0)).findings["data"].startswith("cannot say")


def test_what_the_log_does_not_show_cannot_be_said():
    few = diagnose(Course(training=level([0.5] * (LEAST_ENTRIES - 1))))
    assert (few.verdict, few.change) == ("cannot say", "cannot say")
    noisy = diagnose(Course(training=run(HEALTHY["flat"], 40, 0.2, 0.0, random.Random(9)), rates=False))
    assert noisy.verdict == "cannot say"
    assert "cannot say" in noisy.findings["signal"]
    assert "cannot say" in noisy.findings["data"]


def test_a_solved_set_wants_harder_problems():
    found = diagnose(Course(training=level([min(1.0, 0.4 + 0.03 * k) for k in range(80)]), rates=True))
    assert found.verdict.startswith("solved")
    assert found.change.startswith("D: ")
