"""What ``plan`` says of memory, GPU-hours and money."""

import json
from functools import cache
from typing import Any

import pytest
from isocompute.learner import LearnerConfig
from isocompute.learner.memory.update import Load, UpdateMemory, parameters_of, update_memory
from safetensors.torch import load_file

from experiments.settings import Preset, load
from experiments.stages import footprint, plan
from experiments.stages.plan import Terms

from .made import BASE, ROOT

pytestmark = pytest.mark.xdist_group("traces")

PREPARED = ROOT / "experiments" / "studies" / "panel" / "inputs" / "chains-0" / "base"
QWEN = "Qwen/Qwen2.5-7B-Instruct"


def parameters(preset: Preset) -> int:
    config = footprint.base_config(preset)
    assert config is not None
    return parameters_of(config)


def test_a_model_has_as_many_parameters_as_its_memory_is_traced_with() -> None:
    for preset, folder in (("smoke", BASE), ("tiny", PREPARED)):
        weights = load_file(folder / "model.safetensors")
        assert parameters(load(preset=preset)) == sum(tensor.numel() for tensor in weights.values())
    paper = load(preset="paper")
    assert parameters(paper) == 7_615_616_512
    other = paper.model_copy(update={"base": paper.base.model_copy(update={"model": "someone/else"})})
    assert footprint.base_config(other) is None


@cache
def _traced(model: str, config: LearnerConfig, load: Load, ranks: int) -> UpdateMemory:
    return update_memory(json.loads(model), config, load, ranks=ranks)


def traced(model: dict[str, Any], config: LearnerConfig, load: Load, *, ranks: int) -> UpdateMemory:
    """The same update is traced once, which takes seconds."""
    return _traced(json.dumps(model), config, load, ranks)


def shallow(monkeypatch: pytest.MonkeyPatch, **resources: Any) -> Preset:
    """The paper's preset with one problem set and a model of one layer, which is traced in a moment."""
    monkeypatch.setitem(footprint.PUBLISHED, QWEN, {**footprint.PUBLISHED[QWEN], "num_hidden_layers": 1})
    monkeypatch.setattr(footprint, "RANKS", (1, 8))
    monkeypatch.setattr(footprint, "update_memory", traced)
    preset = load(preset="paper")
    own = preset.resources.model_copy(update=resources)
    return preset.model_copy(update={"resources": own, "sweep": {"easy": preset.sweep["easy"]}, "prescribe": {}})


@pytest.mark.slow
def test_the_plan_of_the_paper_says_what_a_rank_and_an_engine_take_and_what_it_costs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.run(shallow(monkeypatch), Terms(response_tokens=2000))
    printed = capsys.readouterr().out
    assert printed.count("update on each of 4 ranks, traced: 1.32 billion parameters in bfloat16") == 1
    weights = next(line for line in printed.splitlines() if line.strip().startswith("weights"))
    assert float(weights.split()[-2]) == pytest.approx(1.323e9 * 4 / 4 / 2**30, abs=0.01)
    assert "fits the 80 GB of h100 (67.1 GiB for a learner, since 10% is left to what is not traced)" in printed
    assert "KV cache (room for" in printed
    assert "GPU-hours" in printed
    assert "(unverified)" in printed
    assert "sampler: vllm (the device is cuda)" in printed
    rests_on = ("responses of 2,000 tokens on average", "training reaches 25% to 50%", "3.00 USD per device-hour")
    for assumed in rests_on:
        assert f"assumed: {assumed}" in printed


@pytest.mark.slow
def test_the_plan_of_an_adapter_says_how_much_less_it_takes_and_tries_layouts_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = shallow(monkeypatch, learner_ranks=1, placement="colocated", replicas=1)
    sweep = {
        name: one.model_copy(update={"learner": {**one.learner, "adapter": {"rank": 8}}})
        for name, one in preset.sweep.items()
    }
    small = Terms(device=footprint.Device(name="small", peak=1e14, memory=16 * 10**9))
    plan.run(preset.model_copy(update={"sweep": sweep}), small)
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    sizes = [float(line.split()[-2]) for line in printed if line.startswith("weights") and line.endswith("GiB")]
    # In bfloat16, beside an adapter of some millions of numbers.
    assert sizes[0] == pytest.approx(1.323e9 * 2 / 2**30, rel=0.02)
    taken = next(float(line.split()[-2]) for line in printed if line.startswith("in all"))
    said = next(line for line in printed if line.startswith("an adapter of rank 8 is learnt"))
    whole = float(said.split(" GiB")[0].split()[-1])
    assert whole > taken + 1.323e9 * 14 / 2**30
    assert said.endswith(f"{whole / taken:.1f} times as much")
    assert any(line.startswith("with compute:") and line.endswith("per rank, fits") for line in printed)
    assert any(line.startswith("assumed: an update takes as long as one of all weights") for line in printed)


@pytest.mark.slow
def test_the_fewest_ranks_that_hold_an_update_are_named_where_the_settings_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Terms(device=footprint.Device(name="small", peak=1e14, memory=18 * 10**9))
    plan.run(shallow(monkeypatch, learner_ranks=1, placement="colocated", replicas=1), small)
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    refused = next(line for line in printed if line.startswith("does not fit the 18 GB of small"))
    assert refused.endswith("and 40% to the engine beside it)")
    tried = [line for line in printed if line.startswith("with compute:")][:2]
    assert [line.endswith("per rank, fits") for line in tried] == [False, True]
    assert all(f"learner_ranks: {ranks}:" in line for ranks, line in zip((1, 8), tried, strict=True))
