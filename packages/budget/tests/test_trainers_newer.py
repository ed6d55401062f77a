"""The converted settings, put to SkyRL and OpenRLHF themselves, which need Python 3.12: ``nox -s trainers``."""

import ast
import importlib
import importlib.util
import os
import shlex
import sys
from pathlib import Path

import pytest
from isocompute.budget import Allocation
from isocompute.budget.trainers import Parallelism, Run, convert, read, render, trainer

SPLITS = [(8, 4, 5), (32, 64, 500), (3, 8, 7)]
DEVICES = [1, 2, 4, 8, 16, 24]
SPREAD = [
    (Parallelism(), 1),
    (Parallelism(tensor=2), 1),
    (Parallelism(pipeline=2), 2),
    (Parallelism(context=2), 1),
    (Parallelism(tensor=2, pipeline=2, context=2), 2),
]


def needed(name):
    """A trainer's module; the session that installs the trainers does not let one be missing."""
    if "ISOCOMPUTE_TRAINERS_NEWER" in os.environ:
        return importlib.import_module(name)
    return pytest.importorskip(name, exc_type=ImportError)


def run_of(problems, rollouts, steps, **other):
    allocation = Allocation(problems_per_batch=problems, rollouts_per_problem=rollouts, update_steps=steps)
    return Run(allocation=allocation, **other)


def words(name, run):
    """The settings as the words of a command line."""
    return shlex.split(" ".join(render(convert(name, run), trainer(name).style)))


@pytest.fixture
def skyrl(monkeypatch):
    """SkyRL's configuration class and its own validation."""
    monkeypatch.setenv("WANDB_API_KEY", "none")
    config = needed("skyrl.train.config").SkyRLTrainConfig
    validate = needed("skyrl.train.utils.utils").validate_cfg

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


@pytest.fixture
def openrlhf(monkeypatch):
    """OpenRLHF's own parser and validation, without the training that its module begins with."""
    needed("openrlhf.utils.config")
    package = Path(importlib.util.find_spec("openrlhf").submodule_search_locations[0])
    source = package / "cli" / "train_ppo_ray.py"
    tree = ast.parse(source.read_text("utf-8"))
    plain = [n for n in tree.body if isinstance(n, ast.Import) and n.names[0].name in {"argparse", "os"}]
    plain += [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "datetime"]
    main = next(n for n in tree.body if isinstance(n, ast.If))
    *checks, last = main.body
    assert ast.unparse(last) == "train(args)"
    code = compile(ast.Module([*plain, *checks], type_ignores=[]), str(source), "exec")

    def check(arguments):
        monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *arguments])
        names = {}
        exec(code, names)
        return names["args"]

    return check


@pytest.mark.parametrize("world", DEVICES)
@pytest.mark.parametrize("spread", [Parallelism(), Parallelism(tensor=2), Parallelism(context=2)])
def test_openrlhf_takes_the_settings(openrlhf, world, spread):
    run = run_of(48, 4, 5, world_size=world * spread.devices, parallelism=spread, learning_rate=2e-6)
    args = openrlhf([*words("openrlhf", run), "--reward.remote_url", "x", "--vllm.num_engines", "1"])
    assert args.rollout.batch_size * args.rollout.n_samples_per_prompt == args.train.batch_size == 192
    assert args.data.max_samples * args.train.num_episodes == 48 * 5
    assert args.actor.num_nodes * args.actor.num_gpus_per_node == world * spread.devices
    assert (args.ref.num_nodes, args.ref.num_gpus_per_node) == (args.actor.num_nodes, args.actor.num_gpus_per_node)
    assert args.ds.tensor_parallel_size * args.ds.ring_attn_size == spread.devices
    assert args.actor.adam.lr == 2e-6


def test_openrlhfs_defaults_are_those_that_reading_takes(openrlhf):
    args = openrlhf(["--reward.remote_url", "x", "--actor.model_name_or_path", "m"])
    found = read("openrlhf", {}, problems=10_240)
    assert found.problems_generated == args.rollout.batch_size
    assert found.rollouts_per_problem == args.rollout.n_samples_per_prompt
    assert found.update_steps == found.generations * args.rollout.batch_size // args.train.batch_size
    assert found.world_size == args.actor.num_nodes * args.actor.num_gpus_per_node
