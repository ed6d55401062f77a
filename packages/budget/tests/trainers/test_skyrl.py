"""SkyRL's settings, put to SkyRL itself, which needs Python 3.12: ``nox -s trainers``; its logs, simulated."""

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.registry import convert, read
from isocompute.budget.trainers.settings import Parallelism
from reading_logs import asked, ingested, lines, needed, run_of, settings, words

SPLITS = [(8, 4, 5), (32, 64, 500), (3, 8, 7)]
DEVICES = [1, 2, 4, 8, 16, 24]
SPREAD = [
    (Parallelism(), 1),
    (Parallelism(tensor=2), 1),
    (Parallelism(pipeline=2), 2),
    (Parallelism(context=2), 1),
    (Parallelism(tensor=2, pipeline=2, context=2), 2),
]


@pytest.fixture
def skyrl(monkeypatch):
    """SkyRL's configuration class and its own validation."""
    monkeypatch.setenv("WANDB_API_KEY", "none")
    config = needed("skyrl.train.config", session="ISOCOMPUTE_TRAINERS_NEWER").SkyRLTrainConfig
    validate = needed("skyrl.train.utils.utils", session="ISOCOMPUTE_TRAINERS_NEWER").validate_cfg

    def check(settings):
        made = config.from_cli_overrides(settings)
        validate(made)
        return made

    return check


@pytest.mark.parametrize(("split", "world"), [(s, w) for s in SPLITS for w in DEVICES if s[0] * s[1] % w == 0])
def test_skyrl_takes_the_settings_on_its_defaults(skyrl, split, world):
    config = skyrl(words("skyrl", run_of(*split, world_size=world, learning_rate=2e-6)))
    assert config.trainer.train_batch_size * config.generator.n_samples_per_prompt == split[0] * split[1]
    assert config.trainer.placement.colocate_all
    assert config.trainer.algorithm.use_kl_loss
    assert config.trainer.policy.optimizer_config.lr == 2e-6


@pytest.mark.parametrize(("spread", "copies"), SPREAD)
def test_skyrl_takes_the_parallelism(skyrl, spread, copies):
    run = run_of(8, 4, 5, world_size=spread.devices * copies, parallelism=spread)
    config = skyrl(words("skyrl", run))
    found = read("skyrl", {**convert("skyrl", run).settings})
    assert (found.data_parallel, found.inconsistent) == (copies, ())
    sharing = config.trainer.policy.megatron_config if spread.tensor * spread.pipeline > 1 else None
    used = sharing.tensor_model_parallel_size * sharing.pipeline_model_parallel_size if sharing else 1
    assert used == spread.tensor * spread.pipeline


@pytest.mark.parametrize(
    "change",
    [
        "generator.inference_engine.num_engines=1",
        "trainer.placement.colocate_all=false trainer.placement.ref_num_gpus_per_node=1",
        "trainer.policy_mini_batch_size=5",
        "trainer.micro_train_batch_size_per_gpu=3",
    ],
)
def test_what_reading_calls_inconsistent_skyrl_refuses(skyrl, change):
    run = run_of(8, 4, 5, world_size=4)
    settings = {**convert("skyrl", run).settings}
    for word in change.split():
        key, _, value = word.partition("=")
        settings[key] = False if value == "false" else int(value)
    assert read("skyrl", settings).inconsistent
    with pytest.raises(AssertionError):
        skyrl([*words("skyrl", run), *change.split()])


class Run:
    """A run, logged as SkyRL logs it.

    Attributes:
        truth: Of each evaluation the optimizer steps, the rollouts and tokens before it, and its rates by set.
    """

    def __init__(self, seed, *, groups=8, n=4, steps=4, minis=1, passes=1, interval=2, kind="sync", sets=("a",), k=2):
        self.rng, self.sets, self.k = random.Random(seed), sets, k
        self.rollouts = self.tokens = 0
        self.rows, self.truth = [{"_step": 0, **self.evaluation()}], []
        self.truth.append((0, 0, 0, self.rates))
        for step in range(1, steps + 1):
            row = {"_step": step, "trainer/global_step": step, "reward/avg_raw_reward": 0.5}
            dropped = self.rng.randint(0, 3) if kind == "full" else 0
            own, length = (groups + dropped) * n, self.rng.randint(1, 9)
            turns = self.rng.randint(1, 3) if kind == "turns" else 1
            self.rollouts, self.tokens = self.rollouts + own, self.tokens + own * length * turns
            row |= {f"reward/avg_pass_at_{n}": 0.75, "generate/avg_assistant_tokens": float(length)}
            row |= {"generate/avg_num_tokens": length + 5.0, "generate/batch_num_seq": groups * n * turns}
            if kind == "full":
                row |= {"async/num_groups_dropped": dropped, "async/staleness_max": 1}
            if step % interval == 0 or step == steps:
                row |= self.evaluation()
                self.truth.append((step * minis * passes, self.rollouts, self.tokens, self.rates))
            self.rows.append(row)
        self.config = settings(
            f"trainer.train_batch_size={groups} trainer.policy_mini_batch_size={groups // minis} trainer.seed=9 "
            f"trainer.update_epochs_per_batch={passes} trainer.algorithm.dynamic_sampling.type=none "
            "trainer.fully_async.max_staleness_steps=2 trainer.policy.optimizer_config.lr=2e-6 "
            f"generator.n_samples_per_prompt={n} generator.step_wise_trajectories={kind == 'turns'}"
        )

    def evaluation(self):
        right = {name: [[self.rng.random() < 0.4 for _ in range(self.k)] for _ in range(16)] for name in self.sets}
        self.rates = {name: (mean(map(mean, of)), mean(map(any, of))) for name, of in right.items()}
        means = {**self.rates, "all": tuple(map(mean, zip(*self.rates.values(), strict=True)))}
        return {
            key: value
            for name, (rate, best) in means.items()
            for key, value in {
                f"eval/{name}/avg_score": rate,
                f"eval/{name}/pass_at_{self.k}": best,
                f"eval/{name}/mean_positive_reward": rate,
            }.items()
        }

    def read(self, **given):
        asked = {"questions": None, **{f"questions.{name}": "16" for name in self.sets}}
        return ingested("skyrl", self.rows, self.config, **asked, **given)


@profile(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    groups=st.sampled_from([2, 4, 8]),
    n=st.integers(1, 5),
    steps=st.integers(1, 6),
    minis=st.sampled_from([1, 2]),
    passes=st.integers(1, 2),
    interval=st.integers(1, 3),
    kind=st.sampled_from(["sync", "full", "turns"]),
    sets=st.sampled_from([("a",), ("a", "b_c")]),
    k=st.integers(1, 4),
)
def test_skyrls_rollouts_tokens_and_scores_are_those_of_the_run(kind, k, **sizes):
    run = Run(kind=kind, k=k, **sizes)
    evals, _ = run.read()
    found = evals.select("step", "rollouts", "tokens", "problem_set", f"avg_at_{k}").rows()
    assert found == [(s, r, t, name, rate) for s, r, t, rates in run.truth for name, (rate, _) in rates.items()]
    if k > 1:
        assert evals[f"best_at_{k}"].to_list() == [best for *_, rates in run.truth for _, best in rates.values()]
    ahead = 2 * sizes["groups"] * sizes["n"] if kind == "full" else 0
    assert evals["rollouts_error"].to_list() == [ahead if rollouts else 0 for _, rollouts, *_ in found]
    assert (evals["seed"][0], evals["learning_rate"][0]) == (9, 2e-6)


def test_skyrls_dynamic_sampling_is_asked_about_and_a_wrong_group_size_is_refused():
    run = Run(0)
    run.config["trainer.algorithm.dynamic_sampling.type"] = "filter"
    with pytest.raises(BudgetError, match="--set rollouts_per_step="):
        run.read()
    assert run.read(rollouts_per_step="64")[0]["rollouts"].to_list() == [0, 128, 256]
    # Its log says the samples of its groups.
    run.config["generator.n_samples_per_prompt"] = 8
    with pytest.raises(BudgetError, match=r"n_samples_per_prompt is 8, .*reward/avg_pass_at_4"):
        run.read()


def test_all_that_a_log_of_skyrl_lacks_is_asked_at_once(tmp_path):
    run = Run(0)
    given = {"generator.n_samples_per_prompt": 4, "trainer.train_batch_size": 8, "trainer.policy_mini_batch_size": 8}
    given |= {"trainer.update_epochs_per_batch": 1, "trainer.algorithm.dynamic_sampling.type": "none", "questions": 16}
    found = asked(lines(tmp_path / "wandb.jsonl", run.rows), given)
    assert found == ("skyrl", set(given), [rollouts for _, rollouts, *_ in run.truth])
