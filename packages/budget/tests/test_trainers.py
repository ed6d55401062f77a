"""The converted settings, put to TRL and veRL themselves: ``nox -s trainers`` installs them."""

import importlib
import os
from pathlib import Path

import pytest
from isocompute.budget import Allocation
from isocompute.budget.trainers import Parallelism, Run, convert, read

PARALLEL = [
    (Parallelism(context=2), 8),
    (Parallelism(tensor=4, pipeline=2), 16),
    (Parallelism(tensor=2, context=2), 8),
    (Parallelism(pipeline=4), 4),
]
CASES = [(8, 4, 5, 1, None), (32, 64, 500, 8, 16), (3, 6, 7, 1, None), (12, 8, 100, 6, 4), (64, 16, 2, 64, None)]


def needed(name):
    """A trainer's module; the session that installs the trainers does not let one be missing."""
    if "ISOCOMPUTE_TRAINERS" in os.environ:
        return importlib.import_module(name)
    return pytest.importorskip(name, exc_type=ImportError)


def run_of(problems, rollouts, steps, world=1, micro=None):
    allocation = Allocation(problems_per_batch=problems, rollouts_per_problem=rollouts, update_steps=steps)
    return Run(allocation=allocation, world_size=world, micro_batch=micro)


@pytest.fixture
def trl():
    os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", CUDA_VISIBLE_DEVICES="")
    return needed("trl")


@pytest.mark.parametrize("case", CASES)
def test_trl_takes_the_settings_for_the_same_batches(trl, tmp_path, monkeypatch, case):
    run = run_of(*case)
    # The number of processes is the launcher's; its own class says what it makes of the rest.
    monkeypatch.setattr(trl.GRPOConfig, "world_size", property(lambda self: run.world_size))
    config = trl.GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], **convert("trl", run).settings
    )
    a = run.allocation
    assert config.generation_batch_size == a.batch_rollouts
    assert config.generation_batch_size // config.num_generations == a.problems_per_batch
    assert config.steps_per_generation * config.num_iterations == config.gradient_accumulation_steps
    assert config.max_steps == a.update_steps


@pytest.mark.parametrize("case", [(3, 4, 3, 1, 2), (2, 3, 2, 1, None)])
def test_a_trl_run_generates_exactly_the_rollouts_of_the_allocation(trl, tmp_path, case):
    datasets = needed("datasets")
    tokenizers = needed("tokenizers")
    transformers = needed("transformers")
    run = run_of(*case)
    words = {word: place for place, word in enumerate(["<pad>", "<eos>", "<unk>", *"0123456789+="])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=len(words), num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=None, **sizes
        )
    )
    seen = []

    def reward(prompts, completions, **_):
        seen.append(list(prompts))
        return [float(len(c) % 2) for c in completions]

    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        processing_class=tokenizer,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
            max_completion_length=4, disable_tqdm=True, **convert("trl", run).settings,
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(4) for b in range(4)]}),
    )  # fmt: skip
    trainer.train()
    a = run.allocation
    assert sum(map(len, seen)) == a.rollouts
    assert trainer.state.global_step == a.update_steps
    assert len(seen) == a.update_steps
    for prompts in seen:
        assert len(set(prompts)) == a.problems_per_batch
        assert all(prompts.count(prompt) == a.rollouts_per_problem for prompt in prompts)


@pytest.fixture
def stock():
    """VeRL's configuration as it ships."""
    return shipped("_generated_ppo_trainer.yaml")


def shipped(name):
    """One of veRL's configurations."""
    verl = needed("verl")
    omegaconf = needed("omegaconf")
    document = Path(verl.__file__).parent / "trainer" / "config" / name
    config = omegaconf.OmegaConf.load(document)
    # As on veRL's command line: a key that it does not have is an error.
    omegaconf.OmegaConf.set_struct(config, True)
    return config


@pytest.mark.parametrize("case", CASES)
def test_verl_takes_the_settings(stock, case):
    from omegaconf import OmegaConf

    run = run_of(*case)
    for key, value in convert("verl", run).settings.items():
        assert OmegaConf.select(stock, key, throw_on_missing=False, default="absent") != "absent", key
        OmegaConf.update(stock, key, value)
    found = read("verl", {key: OmegaConf.select(stock, key) for key in convert("verl", run).settings})
    assert found.allocation == run.allocation
    validate(stock)


def validate(config):
    """Put a configuration to veRL's own check."""
    needed("verl.workers.config")
    from verl.utils.config import validate_config

    validate_config(config, use_reference_policy=True, use_critic=False)


@pytest.mark.parametrize(("spread", "world"), PARALLEL)
def test_verl_takes_the_parallelism(spread, world):
    needed("verl")
    from omegaconf import OmegaConf

    allocation = Allocation(problems_per_batch=16, rollouts_per_problem=4, update_steps=10)
    run = Run(allocation=allocation, world_size=world, parallelism=spread)
    settings = dict(convert("verl", run).settings)
    engine = settings.pop("model_engine", "dp")
    config = shipped("_generated_ppo_trainer.yaml" if engine == "dp" else f"_generated_ppo_{engine}_trainer.yaml")
    for key, value in settings.items():
        OmegaConf.update(config, key, value)
    validate(config)
    flat = {key: OmegaConf.select(config, key) for key in settings} | {
        "actor_rollout_ref.actor.strategy": config.actor_rollout_ref.actor.strategy
    }
    assert (read("verl", flat).data_parallel, read("verl", flat).inconsistent) == (world // spread.devices, ())
    # One rollout fewer does not divide, which veRL refuses as well.
    config.data.train_batch_size = 15
    config.actor_rollout_ref.rollout.n = 1
    with pytest.raises(AssertionError, match="must be divisible"):
        validate(config)
    smaller = {"data.train_batch_size": 15, "actor_rollout_ref.rollout.n": 1}
    told = read("verl", flat | smaller).inconsistent
    assert any("cannot be split evenly" in remark or "not divide" in remark for remark in told)


def test_verls_own_configuration_reads_back(stock):
    from omegaconf import OmegaConf

    flat = {
        key: OmegaConf.select(stock, key)
        for key in ("data.train_batch_size", "actor_rollout_ref.rollout.n", "trainer.total_epochs", "trainer.nnodes")
    }
    found = read("verl", flat, problems=10 * flat["data.train_batch_size"])
    assert found.generations == 10 * flat["trainer.total_epochs"]
    assert found.update_steps == 4 * found.generations
