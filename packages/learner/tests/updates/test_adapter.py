"""An adapter that is learnt in place of the weights, next to W + s·B·A written out and to peft's own model."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.config import AdapterConfig, ComputeConfig, EntropyConfig, KLConfig, LearnerConfig, SyncConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.saving.export import save_adapter, save_policy
from isocompute.learner.updates.learner import Learner
from peft import PeftModel
from small_run import recorded, scored, written_out
from tiny_models import tiny_config, tiny_model
from transformers import AutoModelForCausalLM, LlamaForCausalLM

pytestmark = pytest.mark.slow("runs that train")

ADAPTER = AdapterConfig(rank=4, alpha=6.0)
CONFIG = LearnerConfig(
    learning_rate=1e-2,
    adapter=ADAPTER,
    kl=KLConfig(coefficient=0.1),
    entropy=EntropyConfig(coefficient=0.02),
    sync=SyncConfig(tolerance=1e9),
)


def batch(policy: Any, config: LearnerConfig, version: int) -> pl.DataFrame:
    rollouts = scored(policy, recorded(version=version, step=version), pl.Float64)
    return prepare(with_cohorts(rollouts, config.batch), config)


def trained(model: Path, config: LearnerConfig = CONFIG, *, updates: int = 2, **others: Any) -> Learner:
    """A learner after some updates from responses of the base model."""
    learner = Learner(model, config, **others)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for version in range(updates):
        learner.update(batch(base, config, version))
    return learner


class WrittenOut:
    """A model whose adapted weights are W + (α/r)·B·A, with A and B as parameters of their own."""

    def __init__(self, model: Path, factors: dict[str, torch.Tensor]) -> None:
        self.base = LlamaForCausalLM.from_pretrained(model, dtype=torch.float64).eval().requires_grad_(False)
        self.factors = {name: factor.clone().requires_grad_() for name, factor in factors.items()}

    def weights(self) -> dict[str, torch.Tensor]:
        weights = dict(self.base.named_parameters())
        for name in [name for name in weights if f"{name[:-7]}.lora_A.default.weight" in self.factors]:
            down, up = (self.factors[f"{name[:-7]}.lora_{which}.default.weight"] for which in "AB")
            weights[name] = weights[name] + 6.0 / 4 * up @ down
        return weights

    def parameters(self) -> list[torch.Tensor]:
        return list(self.factors.values())

    def __call__(self, ids: torch.Tensor) -> Any:
        return torch.func.functional_call(self.base, self.weights(), (ids,))


def factors(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in learner.policy.named_parameters() if p.requires_grad}


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


@pytest.mark.usefixtures("double")
def test_updates_are_those_of_a_low_rank_change_written_out(model: Path) -> None:
    learner = Learner(model, CONFIG, dtype=torch.float64)
    begun = factors(learner)
    assert len(begun) == 2 * 2 * 7
    policy = WrittenOut(model, begun)
    adam = torch.optim.AdamW(policy.parameters(), weight_decay=0.0)
    for step in range(3):
        with torch.no_grad():
            given = batch(policy, CONFIG, step)
        adam.zero_grad()
        gradient, entropy, _ = written_out(policy, policy.base, given, CONFIG)
        report = learner.update(given)
        assert report.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-9)
        assert report.objective["entropy"].value == pytest.approx(entropy, rel=1e-9)
        torch.nn.utils.clip_grad_norm_(policy.parameters(), CONFIG.optimizer.gradient_clip)
        adam.param_groups[0]["lr"] = CONFIG.learning_rate_at(step + 1)
        adam.step()
    begin, mine, theirs = flat(begun), flat(factors(learner)), flat(policy.factors).detach()
    assert float((mine - theirs).norm() / (theirs - begin).norm()) < 1e-9
    merged = dict(learner.weights())
    assert merged.keys() == policy.weights().keys()
    assert all(torch.allclose(merged[name], tensor, rtol=1e-9, atol=0) for name, tensor in policy.weights().items())


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_what_is_handed_over_and_saved_is_what_peft_merges_under_the_names_of_the_base_model(
    family: str, tmp_path: Path
) -> None:
    """Of GPT-2 the weights lie the other way round; Qwen's head is its embedding."""
    base = tmp_path / "base"
    tiny_model(tiny_config(family, **{"tie_word_embeddings": True} if family == "qwen3" else {})).save_pretrained(base)
    learner = trained(base)
    folder = save_adapter(learner.state()[0], ADAPTER, base, tmp_path / "adapter")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in plain.named_parameters()}
    merged = dict(PeftModel.from_pretrained(plain, folder).merge_and_unload().named_parameters())
    found = dict(learner.weights())
    assert found.keys() == merged.keys()
    # peft's products are its own: to rounding, and α/r left out would be another by a tenth.
    assert all(torch.allclose(tensor, merged[name], rtol=1e-6, atol=1e-7) for name, tensor in found.items())
    changed = {name for name, tensor in found.items() if not torch.equal(tensor, before[name])}
    assert {name for name, tensor in before.items() if tensor.dim() == 2 and "layers" in name} <= changed
    assert not any("emb" in name or "norm" in name or "head" in name or "wpe" in name for name in changed)
    whole = save_policy(learner.weights(), base, tmp_path / "policy")
    saved = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    assert all(torch.equal(tensor, found[name]) for name, tensor in saved.named_parameters())
    with pytest.raises(LearnerError, match="files and no adapter"):
        save_adapter(learner.state()[0], ADAPTER, base, whole)
    with pytest.raises(LearnerError, match="save an adapter of"):
        save_adapter(Learner(base, replace(CONFIG, adapter=None)).state()[0], ADAPTER, base, tmp_path / "other")


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_the_reference_is_the_base_model_and_no_second_one(place: str, model: Path) -> None:
    config = replace(CONFIG, kl=KLConfig(coefficient=0.1, place=place))
    learner = Learner(model, config)
    assert learner._models.reference is not None
    assert learner._models.reference.policy is learner.policy
    base = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    rollouts = scored(base, recorded())
    expected = Learner(model, replace(config, adapter=None)).measure(rollouts)["reference_logprobs"]
    measured = learner.measure(rollouts)
    assert measured["reference_logprobs"].equals(expected)
    assert measured["old_logprobs"].equals(expected)
    for _ in range(2):
        rows = rollouts.with_columns(weights_version=pl.lit(learner.version))
        learner.update(prepare(with_cohorts(learner.measure(rows), config.batch), config))
    measured = learner.measure(rollouts.with_columns(weights_version=pl.lit(learner.version)))
    assert measured["reference_logprobs"].equals(expected)
    assert not measured["old_logprobs"].equals(expected)


def test_a_checkpoint_holds_the_adapter_and_its_moments_alone(model: Path) -> None:
    learner = trained(model)
    learnt = set(factors(learner))
    moments = {f"optimizer.policy.{name}.{kind}" for name in learnt for kind in ("exp_avg", "exp_avg_sq", "step")}
    assert set(learner.state()[0]) == {f"policy.{name}" for name in learnt} | moments


def test_the_state_of_another_adapter_or_of_none_is_refused(model: Path) -> None:
    state = Learner(model, CONFIG).state()
    for other in (None, AdapterConfig(rank=2), AdapterConfig(rank=4, target_modules=("q_proj",))):
        with pytest.raises(LearnerError, match="state to continue from"):
            Learner(model, replace(CONFIG, adapter=other)).load_state(*state)


def test_every_adapter_begins_the_same_and_takes_no_number_of_the_runs_generator(model: Path) -> None:
    before = torch.get_rng_state()
    one, other = Learner(model, CONFIG), Learner(model, CONFIG, dtype=torch.float64)
    assert torch.equal(before, torch.get_rng_state())
    begun = factors(one)
    assert all(torch.equal(tensor, begun[name].double().float()) for name, tensor in begun.items())
    assert all(torch.allclose(tensor, begun[name].double()) for name, tensor in factors(other).items())
    one.update(batch(LlamaForCausalLM.from_pretrained(model), CONFIG, 0))
    one.reset(CONFIG)
    assert all(torch.equal(tensor, begun[name]) for name, tensor in factors(one).items())
    # The first numbers of a generator that was just seeded, so that other processes begin so, too.
    first = torch.empty(4, 32, dtype=torch.float64).uniform_(generator=torch.Generator().manual_seed(0))
    assert torch.allclose(next(iter(begun.values())).double(), (2 * first - 1) / 32**0.5, atol=1e-7)
    for name, tensor in begun.items():
        largest = float(tensor.abs().max())
        assert largest == 0 if ".lora_B." in name else 0.8 < largest * tensor.shape[1] ** 0.5 <= 1, name


def test_in_bfloat16_the_frozen_model_is_rounded_and_what_is_learnt_is_not(model: Path) -> None:
    config = replace(CONFIG, compute=ComputeConfig(precision="bfloat16"))
    learner, whole = trained(model, config), trained(model)
    for name, parameter in learner.policy.named_parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16), name
    assert {t.dtype for _, t in learner.weights()} == {t.dtype for t in learner.state()[0].values()} == {torch.float32}
    given = batch(LlamaForCausalLM.from_pretrained(model), CONFIG, 2)
    mine, theirs = learner.update(given), whole.update(given)
    assert mine.gradient_norm == pytest.approx(theirs.gradient_norm, rel=0.05)
    # The base model is the one that is rounded, so that a policy that is it has no KL at all.
    again = Learner(model, config).update(batch(LlamaForCausalLM.from_pretrained(model), CONFIG, 0))
    assert again.objective["kl"].value == 0


def test_layers_that_are_not_there_are_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lm_head", "embed_tokens", "query"):
        config = replace(CONFIG, adapter=AdapterConfig(target_modules=("q_proj", name)))
        with pytest.raises(LearnerError, match=f"has {name}, .*down_proj"):
            Learner(model, config)
    tiny_model(tiny_config("mixtral")).save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match=r"experts of a Mixtral.*k_proj"):
        Learner(tmp_path, CONFIG)
    named = AdapterConfig(target_modules=("layers.1.self_attn.q_proj", "v_proj"))
    names = {name.partition(".lora_")[0] for name in factors(Learner(tmp_path, replace(CONFIG, adapter=named)))}
    expected = {f"model.layers.{layer}.self_attn.v_proj" for layer in range(4)}
    assert names == expected | {"model.layers.1.self_attn.q_proj"}
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(LearnerError, match=r'pip install "isocompute-learner\[lora\]"'):
        Learner(model, CONFIG)
