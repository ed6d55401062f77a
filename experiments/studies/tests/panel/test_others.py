"""The default from other base models: what is said of it, and of which sweep."""

import json

import polars as pl

from experiments.studies.panel import others

ONE = {"rollouts_per_problem": 8, "probability_best": 0.93, "near": [8]}
TWO = {"rollouts_per_problem": 2, "probability_best": 0.51, "near": [2, 8]}
FOUND = {"count": 3, "together": [ONE] * 3, "alone": [TWO, ONE, ONE], "shuffled": [ONE, TWO, TWO]}
SAID = (
    "3 choices of 3: n = 8 (3), P(best) 93% to 93%; 3 alone: n = 8 (2), undecided between n = 2 and 8 (1), "
    "P(best) 51% to 93%; 3 with n shuffled, as if it had no effect: P(best) 51%, one in twenty 89%"
)


def test_answers_are_counted() -> None:
    assert others.summary(FOUND) == SAID


def test_n_is_shuffled_among_the_runs_of_a_base_model_and_rates_stay_in_order() -> None:
    rows = [
        {
            "base_model": base,
            "rollouts_per_problem": n,
            "learning_rate": n * rate,
            "rollouts": rollouts,
            "step": rollouts // n,
            "run_id": f"{base}-{n}-{rate}",
            "avg_at_4": (n + rate) / 100 + rollouts / 1000,
        }
        for base in ("a", "b")
        for n in (2, 8, 32)
        for rate in (0.1, 0.2)
        for rollouts in (0, 64)
    ]
    evals, orders = pl.DataFrame(rows), set()
    for seed in range(8):
        found = others.shuffle(evals, seed)
        settings = evals.columns[:-1]
        assert found.select(settings).sort(settings).equals(evals.select(settings).sort(settings))
        was = []
        for row in found.iter_rows(named=True):
            rate = row["learning_rate"] / row["rollouts_per_problem"]
            was.append(round((row["avg_at_4"] - row["rollouts"] / 1000) * 100 - rate))
        shuffled = found.with_columns(was=pl.Series(was)).group_by("base_model", "rollouts_per_problem").agg("was")
        # All runs of an n have the same other one, and no two n.
        assert all(len(set(each)) == 1 for each in shuffled["was"])
        assert sorted(each[0] for each in shuffled["was"]) == [2, 2, 8, 8, 32, 32]
        orders.add(tuple(was))
    assert len(orders) > 4


def test_the_sentence_of_the_committed_file_is_that_of_its_answers() -> None:
    document = json.loads(others.FILE.read_text())
    assert document["sentence"] == others.summary(document)
