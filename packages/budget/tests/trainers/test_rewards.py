"""Mean rewards that are success rates, and those that only look like it, through every reader.

Each reader's evaluations are logged here as its trainer logs them, of rewards that are drawn.
"""

import random
import statistics

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.counting import SCALES, LoggedEvaluation, Score, Spread, StepCount, success_rates
from isocompute.budget.trainers.doctor import rows_of
from isocompute.budget.trainers.logs.log import Log
from isocompute.budget.trainers.registry import trainer
from isocompute.budget.trainers.settings import MissingSettingError
from reading_logs import OPENRLHF, PRIME_RL, SKYRL, SLIME, TINKER, TRL, VERL

quick = settings(max_examples=25, deadline=None)
SAMPLES = 4


def trl(rewards):
    """Means and sample deviations of batches of 8, and their means."""
    flat = [reward for group in rewards for reward in group]
    batches = [flat[i : i + 8] for i in range(0, len(flat), 8)]
    return {
        "eval_rewards/right/mean": statistics.fmean(map(statistics.fmean, batches)),
        "eval_rewards/right/std": statistics.fmean(statistics.stdev(b) if len(b) > 1 else 0.0 for b in batches),
    }


def resampled(group, k, choose):
    """The mean of the best or the worst of k responses, as veRL draws them: with replacement, from one seed."""
    rng = random.Random(42)
    return statistics.fmean(choose(rng.choices(group, k=k)) for _ in range(60))


def verl(rewards):
    """By problem, then averaged: means, population deviations, and the best and the worst of k."""
    name = f"val-core/math/reward/{{}}@{SAMPLES}{{}}"
    return {
        name.format("mean", ""): statistics.fmean(map(statistics.fmean, rewards)),
        name.format("std", ""): statistics.fmean(map(statistics.pstdev, rewards)),
        name.format("best", "/mean"): statistics.fmean(resampled(group, SAMPLES, max) for group in rewards),
        name.format("worst", "/mean"): statistics.fmean(resampled(group, SAMPLES, min) for group in rewards),
    }


def openrlhf(rewards):
    return {
        "eval/eval_math_pass1": statistics.fmean(map(statistics.fmean, rewards)),
        f"eval/eval_math_pass{SAMPLES}": statistics.fmean(map(max, rewards)),
        "eval/eval_num_samples": float(len(rewards) * SAMPLES),
    }


def prime_rl(rewards):
    """pass@k is there where all rewards are 0 or 1."""
    logged = {f"eval/math/avg@{SAMPLES}": statistics.fmean(map(statistics.fmean, rewards))}
    if {reward for group in rewards for reward in group} <= {0.0, 1.0}:
        logged |= {"eval/math/pass@1": logged[f"eval/math/avg@{SAMPLES}"]}
        logged |= {f"eval/math/pass@{SAMPLES}": statistics.fmean(map(max, rewards))}
    return logged


def skyrl(rewards):
    """A question passes with any reward above 0."""
    flat = [reward for group in rewards for reward in group]
    return {
        "eval/math/avg_score": statistics.fmean(flat),
        "eval/math/mean_positive_reward": statistics.fmean(max(reward, 0.0) for reward in flat),
        f"eval/math/pass_at_{SAMPLES}": statistics.fmean(any(r > 0 for r in group) for group in rewards),
    }


def slime(rewards):
    """What passes has a reward of 1."""
    return {
        "eval/math": statistics.fmean(reward for group in rewards for reward in group),
        "eval/math-pass@1": statistics.fmean(reward == 1 for group in rewards for reward in group),
        f"eval/math-pass@{SAMPLES}": statistics.fmean(any(r == 1 for r in group) for group in rewards),
    }


def tinker(rewards):
    return {
        "test/env/all/reward/total": statistics.fmean(reward for group in rewards for reward in group),
        "test/env/all/total_episodes": float(len(rewards) * SAMPLES),
    }


READERS = {
    "trl": (trl, TRL),
    "verl": (verl, VERL),
    "openrlhf": (openrlhf, OPENRLHF),
    "prime-rl": (prime_rl, PRIME_RL),
    "skyrl": (skyrl, SKYRL),
    "slime": (slime, SLIME),
    "tinker": (tinker, TINKER),
}


def read(name, evaluations, questions, **given):
    """The mean success rates that a reader finds in a run of which so many rewards were logged."""
    logged, config = READERS[name]
    config = {**config, "per_device_eval_batch_size": 8} if name == "trl" else config
    first = [{"progress/rollouts": 32.0, "progress/tokens": 32.0} if name == "prime-rl" else {}] * len(evaluations)
    rows = [
        (step, logged(rewards) | more) for step, (rewards, more) in enumerate(zip(evaluations, first, strict=True), 1)
    ]
    given = {"questions": str(questions), **given}
    rows, notes = rows_of(trainer(name), Log(name="a run", rows=rows), config, given)
    return [row[f"avg_at_{SAMPLES}"] for row in rows], rows, notes


def tried(name, evaluations, questions):
    """Why a reader refuses a run, else its mean success rates and the notes on them."""
    try:
        found, _, notes = read(name, evaluations, questions)
    except BudgetError as error:
        return str(error), [], []
    return "", found, notes


def whole(questions, name):
    """As many problems as fill TRL's batches of 8, whose mean is otherwise not that of the responses."""
    return questions + questions % 2 if name == "trl" else questions


def drawn(seed, questions, low, high, evaluations=4):
    """Successes of every response, and the rewards of them."""
    rng = random.Random(seed)
    successes = [
        [[rng.random() < p for _ in range(SAMPLES)] for p in (rng.random() for _ in range(questions))]
        for _ in range(evaluations)
    ]
    rewards = [[[high if right else low for right in group] for group in each] for each in successes]
    return [statistics.fmean(right for group in each for right in group) for each in successes], rewards


every = pytest.mark.parametrize("name", sorted(READERS))


@every
@quick
@given(scale=st.sampled_from(sorted(SCALES)), seed=st.integers(0, 10**6), questions=st.integers(1, 12))
def test_rewards_of_a_declared_scale_are_its_success_rates_exactly(name, scale, seed, questions):
    questions = whole(questions, name)
    rates, rewards = drawn(seed, questions, *SCALES[scale])
    if name == "prime-rl" and scale != "rate":
        # One where all succeeded at ±1, or failed at 0 and 100, may look like 0 and 1.
        assume(not any({r for g in each for r in g} <= {0.0, 1.0} for each in rewards))
    found, rows, notes = read(name, rewards, questions, scale=scale)
    assert found == pytest.approx(rates, abs=1e-9)
    assert any("is read as a success rate" in note for note in notes) == (scale != "rate")
    # The best and the worst of k are on the scale of the mean.
    scores = [(row.get("worst_at_4_biased", 0), row["avg_at_4"], row.get("best_at_4", 1)) for row in rows]
    assert all(0 <= worst <= mean + 0.2 and mean <= best + 1e-9 for worst, mean, best in scores)


@every
@quick
@given(scale=st.sampled_from(sorted(SCALES)), seed=st.integers(0, 10**6), questions=st.integers(4, 12))
def test_a_scale_that_is_not_declared_is_read_exactly_where_the_log_shows_it_or_asked_for(name, scale, seed, questions):
    questions = whole(questions, name)
    rates, rewards = drawn(seed, questions, *SCALES[scale])
    # With a few failures only, a mean of -1 and 1 is one that 0 and 1 may have, too.
    assume(all(0.2 < rate < 0.8 for rate in rates) and min(rates) < 0.5)
    refused, found, notes = tried(name, rewards, questions)
    # These log the share of 1s as well.
    shown = scale == "rate" or (scale == "sign" and name in ("skyrl", "slime"))
    assert ("scale" in refused) == (not shown)
    assert not shown or found == pytest.approx(rates, abs=1e-9)
    assert any("is read as a success rate" in note for note in notes) == (shown and scale != "rate")


@every
@quick
@given(
    scale=st.sampled_from(["", *sorted(SCALES)]),
    levels=st.lists(st.integers(-150, 300), min_size=2, max_size=4, unique=True),
    seed=st.integers(0, 10**6),
    questions=st.integers(4, 12),
)
def test_rewards_of_any_other_scale_are_refused(name, scale, levels, seed, questions):
    rng, questions = random.Random(seed), whole(questions, name)
    rewards = [[[rng.choice(levels) / 100 for _ in range(SAMPLES)] for _ in range(questions)] for _ in range(4)]
    # Where every sum could be of successes alone, no log could tell; nor where means of few decimals may be rounded.
    low, high = SCALES[scale or "rate"]
    means = [sum((r - low) / (high - low) for g in each for r in g) / questions / SAMPLES for each in rewards]
    sums = [mean * questions * SAMPLES for mean in means if len(str(round(mean, 12))) > 10]
    assume(any(abs(total - round(total)) > 0.02 for total in sums))
    with pytest.raises(BudgetError):
        read(name, rewards, questions, **({"scale": scale} if scale else {}))


@every
@quick
@given(seed=st.integers(0, 10**6), questions=st.integers(2, 12), said=st.integers(1, 40))
def test_a_number_of_problems_that_cannot_have_been_evaluated_is_refused(name, seed, questions, said):
    questions = whole(questions, name)
    rates, rewards = drawn(seed, questions, 0.0, 1.0)
    refused, found, _ = tried(name, rewards, said)
    if refused:
        assert said != questions
        assert f"{said:,} × {SAMPLES}" in refused
        return
    assert found == pytest.approx(rates)
    # TRL's last batch may be short, and then weighs as much as the others.
    # A mean with few decimals may have been rounded.
    sums = [rate * said * SAMPLES for rate in rates if len(str(rate)) > 10]
    assert all(abs(total - round(total)) < 1e-2 for total in sums) or (name == "trl" and said % 2)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("trl", "right"),
        ("verl", "reward"),
        ("skyrl", "mean_positive_reward"),
        ("slime", "eval/math"),
        ("tinker", "reward/total"),
    ],
)
def test_a_metric_is_read_where_there_is_one_of_the_name(name, metric):
    _, rewards = drawn(0, 4, 0.0, 1.0)
    assert read(name, rewards, 4, metric=metric)[0] == read(name, rewards, 4)[0]
    with pytest.raises(BudgetError, match=r"metric .*wrong"):
        read(name, rewards, 4, metric="wrong")


def points(rewards, batch):
    """Evaluations of equal batches of single responses, as TRL logs them."""
    found = []
    for step, each in enumerate(rewards):
        batches = [each[i : i + batch] for i in range(0, len(each), batch)]
        mean = statistics.fmean(statistics.fmean(b) for b in batches)
        deviation = statistics.fmean(statistics.stdev(b) for b in batches)
        found.append(evaluation(step, mean, Spread(deviation=deviation, size=batch, corrected=True), len(each)))
    return found


def evaluation(step, mean, spread=None, questions=None, samples=1, **best):
    count = StepCount(logged=step, step=step, rollouts=0, rollouts_error=0, tokens=0, count_source="log")
    scores = {f"avg_at_{samples}": mean, **best}
    score = Score(samples=samples, scores=scores, metric="reward", spread=spread, questions=questions)
    return LoggedEvaluation.of(score, count, "m")


def rated(*of, scale=""):
    found, notes = success_rates(of, scale, where="a run")
    return [each.scores["avg_at_1"] for each in found], notes


@pytest.mark.parametrize("scale", ["sign", "percent"])
def test_a_spread_that_leaves_no_doubt_says_the_scale(scale):
    low, high = SCALES[scale]
    rates, notes = rated(*points([[high] * 3 + [low] * 5, [high] * 6 + [low] * 2], 8))
    assert rates == pytest.approx([3 / 8, 6 / 8])
    assert f"rewards {low:g} and {high:g}" in notes[0]


@pytest.mark.parametrize(
    ("evaluations", "scale", "said"),
    [
        *[
            (points([r], 4), "", "not a success rate")
            for r in ([0.4, 0.5, 0.6, 0.5], [0.1, 0.1, 1.1, 0.1], [0, 0.5, 1, 0.5])
        ],
        # A bonus for the format lets every question pass: a best of k of more than k times the mean.
        ([evaluation(0, 0.1, samples=2, best_at_2=1.0)], "", "not a success rate"),
        ([evaluation(0, 0.5)], "stars", "scale is 'stars'"),
    ],
)
def test_what_is_no_rate_on_any_scale_is_refused(evaluations, scale, said):
    with pytest.raises(BudgetError, match=said):
        rated(*evaluations, scale=scale)


def test_means_alone_do_not_say_a_scale():
    with pytest.raises(MissingSettingError, match="scale=sign") as asked:
        rated(evaluation(0, -0.25), evaluation(1, 0.5))
    assert (asked.value.name, asked.value.choices) == ("scale", "sign")
    assert rated(evaluation(0, -0.25), evaluation(1, 0.5), scale="sign")[0] == [0.375, 0.75]
    with pytest.raises(BudgetError, match="scale=percent"):
        rated(evaluation(0, 12.5), evaluation(1, 99.0))
    assert rated(evaluation(0, 12.5), evaluation(1, 99.0), scale="percent")[0] == pytest.approx([0.125, 0.99])
    with pytest.raises(BudgetError, match="reward is 101"):
        rated(evaluation(0, 101.0), scale="percent")


def test_a_mean_with_few_decimals_may_have_been_rounded():
    size = Spread(size=1)
    # 17 of 48 problems, in full and as a console shows it; 0.36 is of no number of them.
    for mean in (17 / 48, 0.354, 0.35):
        assert rated(evaluation(0, mean, size, 48))[0] == [mean]
    for mean in (0.3601234567, 0.364):
        with pytest.raises(BudgetError, match="of 48 × 1"):
            rated(evaluation(0, mean, size, 48))
