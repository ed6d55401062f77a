"""Runs of veRL's trainers, with stand-ins for what needs GPUs (``verl_runs``): the ledger is what they dispatched.

ISOCOMPUTE_VERL_RUNS=20 asks for more of them.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict

import pytest
import verl_runs
from isocompute.budget import BudgetError, History
from reading_logs import needed
from verl_runs import Case

pytestmark = pytest.mark.slow("runs of veRL, with Ray")

RUNS = int(os.environ.get("ISOCOMPUTE_VERL_RUNS", "3"))
SEED = int(os.environ.get("ISOCOMPUTE_VERL_SEED", "0"))
KEYS = "trainer.v1.sampler.sampler_kwargs"
COLOCATED = "trainer.v1.colocate_async.num_warmup_batches"
STRICT = "trainer.v1.sampler.max_off_policy_threshold=1"

CASES = [
    Case(n=4, filtered=True, limits={"rollouts": 100}),
    Case(limits={"rollouts": 14}, in_actor=True),
    Case(mode="colocate_async", limits={"rollouts": 40}, overrides=[f"{COLOCATED}=2", STRICT]),
    Case(mode="separate_async", batch=4, samples=2, limits={"response_tokens": 60}, failing=0.1),
    Case(limits={"rollouts": 24}, kills=[3, 4], save_freq=2),
    Case(mode="colocate_async", limits={"rollouts": 48}, kills=[3], save_freq=2, overrides=[f"{COLOCATED}=1"]),
    Case(limits={"device_hours": 2 / 3600}, steps=10_000),
    Case(limits={"rollouts": 8}, tools=True),
    Case(limits={"rollouts": 3}, in_actor=True),
]


@pytest.fixture(scope="module")
def verl():
    needed("transfer_queue")
    return needed("verl.trainer.ppo.v1.trainer_base")


@pytest.fixture(scope="module")
def prepared(verl, tmp_path_factory):
    place = tmp_path_factory.mktemp("prepared")
    verl_runs.prepare(place)
    return place


def run(cases, place, *, killed=False):
    """Train cases one after the other in another process, and return their results."""
    place.mkdir(exist_ok=True)
    (place / "cases.json").write_text(json.dumps([asdict(case) for case in cases]))
    variables = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
    command = [sys.executable, verl_runs.__file__, place / "cases.json", place / "runs", place / "found.json"]
    done = subprocess.run(list(map(str, command)), env={**os.environ, **variables}, capture_output=True, text=True)
    if killed:
        assert done.returncode == -9, done.stderr[-4000:]
        return []
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((place / "found.json").read_text())


def check(case, found, path):
    """The ledger is what was dispatched and sampled, the limit holds, and nothing is missing at the end."""
    said = json.dumps({"case": asdict(case), "found": found})
    assert "raised" not in found, found["raised"] + said
    history = History.read(path)
    totals = history.totals()
    training = totals.used + totals.lost_training
    evaluation = totals.canonical["eval"] + totals.lost["eval"]
    # Nothing was in flight when a process was killed in the middle of a synchronous step.
    exact = case.mode == "sync" or not case.kills
    for counts, mode in ((training, "train"), (evaluation, "eval")):
        # What a killed process had charged, and a checkpoint brought back, may be charged again; none is forgotten.
        again = found["restored"] if mode == "train" and case.kills else [0, 0]
        # What was in flight when a refill was refused is charged by the next attempt.
        forgotten = found["dispatched"][mode] if found["error"] else 0
        assert -forgotten <= counts.rollouts - found["dispatched"][mode] <= again[0], said
        made = found["made"][mode]
        if case.tools:
            made = [made[0], made[1] + made[0], made[2] - made[0]]
        if mode == "eval" or (exact and case.mode == "sync"):
            assert [counts.rollouts, counts.prompt_tokens, counts.response_tokens] == made, said
        else:
            assert counts.response_tokens <= made[2] + again[1], said
    counted = training if case.limits.get("counted", "paid") == "paid" else totals.used
    if "rollouts" in case.limits:
        assert counted.rollouts <= case.limits["rollouts"], said
    last = found["taken"][-1] if found["taken"] else 0
    if found["error"]:
        return "refused" if "not even the next step fits" in found["error"] else "no refill"
    batch = case.batch * case.n
    refilled = (case.filtered, totals.canonical["stale"].rollouts, totals.canonical["failed"].rollouts)
    if "rollouts" in case.limits and not any(refilled):
        waiting = totals.lost_training.rollouts if case.limits.get("counted") == "used" else 0
        assert counted.rollouts + waiting + batch > case.limits["rollouts"], said
    if "response_tokens" in case.limits:
        assert counted.response_tokens >= case.limits["response_tokens"], said
    # veRL validates and saves after its last step.
    assert found["reason"], said
    assert (found["saved"][-1], found["validated"][-1]) == (last, last), said
    assert history.last_step == last, said
    assert sorted(set(found["taken"])) == list(range(1, last + 1)), said
    assert found["log"][str(last)]["budget/paid"] == training.rollouts, said
    return "stopped"


def random_cases(count):
    return [verl_runs.random_case(random.Random(f"{SEED} {number}")) for number in range(count)]


def test_the_ledger_of_a_run_is_what_it_dispatched(verl, tmp_path):
    cases = [*CASES, *random_cases(RUNS)]
    outcomes = []
    for number, (case, found) in enumerate(zip(cases, run(cases, tmp_path), strict=True)):
        outcomes.append(check(case, found, tmp_path / "runs" / str(number) / "run.ledger"))
        print(case.mode, case.limits, outcomes[-1], found["reason"] or found["error"])
    assert outcomes.count("stopped") >= 6
    assert outcomes[len(CASES) - 1] == "refused"
    evicted = History.read(tmp_path / "runs" / "0" / "run.ledger").totals().canonical["filtered"]
    assert evicted.rollouts > 0
    assert History.read(tmp_path / "runs" / "2" / "run.ledger").totals().canonical["stale"].rollouts > 0


def test_a_run_that_was_killed_goes_on_with_its_ledger(verl, tmp_path):
    case = Case(limits={"rollouts": 24}, kills=[3], save_freq=2, for_real=True)
    run([case], tmp_path, killed=True)
    (found,) = run([case], tmp_path)
    assert found["resumed"] == [2]
    assert found["taken"][-1] == found["saved"][-1] == found["validated"][-1] == 5
    history = History.read(tmp_path / "runs" / "0" / "run.ledger")
    assert history.resumed_from == (0, 2)
    assert (history.totals().used.rollouts, history.totals().lost_training.rollouts) == (20, 4)
    assert found["dispatched"]["train"] == found["made"]["train"][0] == 24


@pytest.fixture
def config(prepared):
    return lambda case=CASES[1], folder="run": verl_runs.configuration(case, prepared / folder)


@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case.mode)
def test_the_replay_buffer_is_the_one_that_verl_would_make(verl, config, case):
    chosen = config(case)
    custom = chosen.trainer.v1.sampler.custom_sampler
    trainer = verl.get_trainer_cls(case.mode)(chosen)
    ours, budgeted = vars(trainer.replay_buffer), type(trainer.replay_buffer)
    path, custom.path = custom.path, None
    theirs = trainer._build_replay_buffer()
    assert path == "pkg://isocompute.budget.verl"
    assert issubclass(budgeted, type(theirs))
    assert ours["filter_groups_metric"] == ("reward" if case.filtered else None)
    assert {k: v for k, v in ours.items() if k not in ("budget", "refill_fn")} == {
        k: v for k, v in vars(theirs).items() if k != "refill_fn"
    }


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([f"+{KEYS}.rolouts=8", f"~{KEYS}.ledger", f"{KEYS}.rollouts=0"], r"rolouts.*ledger is None.*rollouts is 0"),
        ([f"~{KEYS}.rollouts"], r"sampler_kwargs: there is no limit to hold the run to: no rollouts, response_tok"),
        (["skip.rollout_tq.enable=True"], r"skip\.rollout_tq\.enable=True trains on rollouts of an earlier run"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(verl, config, overrides, said):
    with pytest.raises(BudgetError, match=said):
        verl.get_trainer_cls("sync")(config(Case(limits={"rollouts": 14}, overrides=overrides)))


def test_another_version_of_verl_is_refused(verl, config, monkeypatch):
    monkeypatch.setattr("isocompute.budget.verl.version", lambda _: "1.0.0")
    with pytest.raises(BudgetError, match=r"veRL 1\.0\.0 .*0\.9"):
        verl.get_trainer_cls("sync")(config())


def test_one_half_of_a_budget_without_the_other_is_refused(verl, config):
    from isocompute.budget.verl import AgentLoopManager, ReplayBuffer

    with pytest.raises(BudgetError, match=r"custom_sampler\.path=pkg"):
        AgentLoopManager.create(config=config(), llm_client=None)
    trainer = verl.get_trainer_cls("sync")(config())
    with pytest.raises(BudgetError, match="manager is not"):
        trainer.replay_buffer._evict_terminal_groups(1, "train", (set(), set(), set(), {}))
    with pytest.raises(BudgetError, match="refill_fn is None"):
        ReplayBuffer(trainer_mode="sync")
