"""An evaluation when responses are lost."""

from typing import Any

import polars as pl
import pytest
from isocompute.rollout import RolloutError, evaluate, open_sampler
from isocompute.rollout.samplers.sampling import aborted


@pytest.fixture
def sampler(tiny: Any) -> Any:
    return open_sampler("transformers", str(tiny.folder), tiny.sampling)


def losing(sampler: Any, lost: Any) -> list[list[tuple[int, ...]]]:
    """Make a sampler lose the responses that ``lost(round, prompt)`` says; return what it is asked, by round."""
    generate = sampler._generate
    rounds: list[list[tuple[int, ...]]] = []

    def unsteady(requests: Any, control: Any) -> Any:
        rounds.append([tuple(request.prompt_ids) for request in requests])
        for i, response in generate(requests, control):
            lose = lost(len(rounds), i, tuple(requests[i].prompt_ids))
            yield i, aborted("the engine failed") if lose else response

    sampler._generate = unsteady
    return rounds


def many(tiny: Any, count: int) -> pl.DataFrame:
    """Distinct short questions."""
    return pl.DataFrame(
        {
            "problem_id": [f"q{i:02d}" for i in range(count)],
            "prompt": [f"{i // 9 + 1}+{i % 9 + 1}=" for i in range(count)],
            "answer": "2",
            "verifier": "exact",
            "source": "s",
            "split": "validation",
        }
    )


ASKED: dict[str, Any] = {"samples": 4, "seed": 1, "at": 64, "run_id": "r"}


def test_aborted_responses_are_tried_again_under_new_indices(sampler: Any, tiny: Any) -> None:
    whole = evaluate(sampler, tiny.problems, **ASKED)
    # The first round loses the second and third response of the first question.
    rounds = losing(sampler, lambda number, i, prompt: number == 1 and i in {1, 2})
    found = evaluate(sampler, tiny.problems, **ASKED)
    assert [len(asked) for asked in rounds] == [24, 2]
    assert found.questions == 6
    first = found.rollouts.filter(pl.col("problem_id") == "p0")
    assert first["sample"].to_list() == [0, 1, 2, 3, 4, 5]
    assert first["finish_reason"].to_list()[1:3] == ["aborted"] * 2
    others = pl.col("problem_id") != "p0"
    assert found.rollouts.filter(others).equals(whole.rollouts.filter(others))
    # What a response is does not depend on the round it came in.
    kept = whole.rollouts.filter(~others)["response_ids"].to_list()
    assert first["response_ids"].to_list()[0] == kept[0]
    assert found.pass_rates["samples"].to_list() == [4] * 6


def test_more_responses_than_asked_for_all_count(sampler: Any, tiny: Any) -> None:
    # Question p0 lacks three and p1 one: both are asked three more times, and p1 then has six.
    losing(sampler, lambda number, i, prompt: number == 1 and i in {0, 1, 2, 4})
    found = evaluate(sampler, tiny.problems, **ASKED)
    assert found.pass_rates["samples"].to_list() == [4, 6, 4, 4, 4, 4]
    rates = (found.pass_rates["successes"] / found.pass_rates["samples"]).to_numpy()
    assert found.metrics["avg_at_4"] == pytest.approx(rates.mean())


def test_a_question_that_stays_without_responses_is_left_out(sampler: Any, tiny: Any) -> None:
    problems = many(tiny, 20)
    gone = tuple(sampler.tokenizer("1+3=", add_special_tokens=False)["input_ids"])
    rounds = losing(sampler, lambda number, i, prompt: prompt == gone and i % 4 != 0)
    found = evaluate(sampler, problems, **ASKED)
    assert [len(asked) for asked in rounds] == [80, 3, 2]
    assert found.questions == 19
    assert len(found.pass_rates) == 20
    assert found.pass_rates.filter(pl.col("samples") < 4)["problem_id"].to_list() == ["q02"]


def test_an_engine_that_fails_too_often_measures_nothing(sampler: Any, tiny: Any) -> None:
    losing(sampler, lambda number, i, prompt: i % 4 == 3 or number > 1)
    with pytest.raises(RolloutError, match="than 4 responses after 3"):
        evaluate(sampler, tiny.problems, **ASKED)


def test_an_evaluation_of_another_phase_has_seeds_of_its_own(sampler: Any, tiny: Any) -> None:
    shown, fresh = (evaluate(sampler, tiny.problems, **ASKED, phase=phase) for phase in ("eval", "baseline"))
    assert set(fresh.rollouts["phase"]) == {"baseline"}
    assert shown.rollouts["response_ids"].to_list() != fresh.rollouts["response_ids"].to_list()
