"""Groups of rollouts: each is still there, or was counted once, as made or as failed."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.ledger.counts import Counts
from isocompute.budget.verl import Groups, read_settings

lengths = st.tuples(st.integers(0, 9), st.integers(0, 9))
# Of each prompt: how many rollouts were dispatched, and of each session the lengths of its trajectories.
prompts = st.lists(st.lists(st.lists(lengths, max_size=3), max_size=4), max_size=8)


def tags_of(made):
    return {
        f"{uid}_{session}_{index}": {"prompt_len": prompt, "response_len": response}
        for uid, sessions in made.items()
        for session, trajectories in enumerate(sessions)
        for index, (prompt, response) in enumerate(trajectories)
    }


@given(prompts, st.randoms(use_true_random=False))
def test_every_rollout_is_counted_once(all_sessions, rng):
    made = {f"{k:x}-prompt": sessions for k, sessions in enumerate(all_sessions)}
    groups, tags = Groups(), tags_of(made)
    for uid, sessions in made.items():
        groups[uid] = len(sessions)
    total = groups.rollouts
    counted, failed = Counts(), 0
    for uid in rng.choices(sorted(made), k=len(made)) if made else []:
        some, none = groups.take([uid], tags, {})
        counted, failed = counted + some, failed + none
        assert uid not in groups
    rest, none = groups.take(list(groups), tags, {})
    counted, failed = counted + rest, failed + none
    assert groups.rollouts == 0
    assert counted.rollouts + failed == total
    assert counted.rollouts == sum(bool(t) for sessions in all_sessions for t in sessions)
    assert counted.prompt_tokens == sum(tag["prompt_len"] for tag in tags.values())
    assert counted.response_tokens == sum(tag["response_len"] for tag in tags.values())


def test_what_a_tool_wrote_is_a_prompt_token():
    groups = Groups()
    groups["a"] = 1
    tags = {"a_0_0": {"prompt_len": 5, "response_len": 7}}
    assert groups.take(["a"], tags, {"a_0_0": 3}) == (Counts(rollouts=1, prompt_tokens=8, response_tokens=4), 0)


def test_all_that_is_wrong_with_the_budget_of_a_run_is_named_at_once(monkeypatch):
    monkeypatch.setattr("isocompute.budget.verl.version", lambda _: "0.9.1")
    sampler = SimpleNamespace(sampler_kwargs={"rolouts": 8, "rollouts": 0, "devices": 0})
    config = SimpleNamespace(
        skip=SimpleNamespace(rollout_tq=SimpleNamespace(enable=False)),
        trainer=SimpleNamespace(v1=SimpleNamespace(sampler=sampler)),
    )
    with pytest.raises(BudgetError) as refused:
        read_settings(config)
    assert all(name in str(refused.value) for name in ("'rolouts'", "ledger is None", "rollouts is 0", "devices is 0"))
    sampler.sampler_kwargs = {"ledger": "run.ledger", "rollouts": 8, "devices": 2}
    assert read_settings(config)["limits"].rollouts == 8
