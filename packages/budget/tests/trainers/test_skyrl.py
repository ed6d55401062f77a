"""SkyRL's settings, put to SkyRL itself, which needs Python 3.12: ``nox -s trainers``."""

import pytest
from isocompute.budget.trainers.registry import convert, read
from isocompute.budget.trainers.settings import Parallelism
from reading_logs import needed, run_of, words

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
