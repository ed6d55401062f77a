"""What ``plan`` says of memory, GPU-hours and money."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from isocompute.learner import LearnerConfig
from isocompute.learner.memory.update import Load, UpdateMemory, parameters_of
from isocompute.rollout import EngineConfig
from safetensors.torch import load_file

from experiments.errors import ExperimentError
from experiments.settings import Preset, ResourcesConfig, load
from experiments.stages import footprint, plan
from experiments.stages.costs import Costs, Terms, in_all

from .made import BASE, ROOT
from .made import cell as made_cell

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


def shallow(monkeypatch: pytest.MonkeyPatch, **resources: Any) -> Preset:
    """The paper's preset with one problem set and a model of one layer, which is traced in a moment."""
    monkeypatch.setitem(footprint.PUBLISHED, QWEN, {**footprint.PUBLISHED[QWEN], "num_hidden_layers": 1})
    monkeypatch.setattr(footprint, "RANKS", (1, 8))
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
    assert "GPU-hours on h100" in printed
    assert "(unverified)" in printed
    assert "colocated, learner_ranks: 8, replicas: 8, engine: {sleep: 1, memory_share: 0.8" in printed
    assert "sampler: vllm (the device is cuda)" in printed
    rests_on = ("lengths are lognormal: a mean of 2,000", "training reaches 25% to 50%", "3.00 USD per GPU-hour")
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
    small = Terms(device=footprint.Device(name="small", peak=1e14, float32=1e13, memory=12 * 10**9, bandwidth=1e12))
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
    # Beside a learner an engine does not fit at all.
    assert "GPU-hours: not counted, since an engine does not fit" in printed


GIB = 2**30
TRACED = {"weights": 7 * GIB, "reference": 0, "moments": 14 * GIB, "gradients": 7 * GIB, "temporary": 9 * GIB}


def seven(monkeypatch: pytest.MonkeyPatch, **resources: Any) -> Costs:
    """The costs of the paper's Easy set, whose update is not traced."""

    def known(model: object, config: object, load: object, *, ranks: int) -> UpdateMemory:
        return UpdateMemory(parameters=7_615_616_512, ranks=ranks, **TRACED)

    monkeypatch.setattr(footprint, "traced", known)
    preset = load(preset="paper")
    preset = preset.model_copy(update={"resources": preset.resources.model_copy(update=resources)})
    learner = preset.learner(preset.sweep["easy"], learning_rate=1e-6)
    config = footprint.base_config(preset)
    assert config is not None
    cells = [
        made_cell(
            learner=learner, problems_per_batch=size, rollouts_per_problem=n, rollouts=2**20, evaluate_every=2**16
        )
        for size, n in ((32, 8), (32, 64), (256, 64))
    ]
    terms = Terms(response_tokens=2000)
    of = footprint.Footprint(preset=preset, cell=cells[-1], model=config, device=terms.device)
    work = {"cells": cells, "tested": 0, "evaluated": 48 * 1200, "questions": 1200, "measured": 10_000}
    return Costs(footprint=of, terms=terms, **work)


def test_gpus_are_paid_while_they_wait_and_an_engine_that_sleeps_lets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = seven(monkeypatch)
    separate, pipelined, colocated = (costs.spent(option) for option in costs.options)
    place = costs.options[0].placement
    assert (place.ranks, place.engines, place.held) == (4, 4, 8)
    # All that four ranks do while four engines wait, and the other way round.
    assert separate.held.likely == pytest.approx(8 * separate.wall.likely)
    assert 0.49 < separate.idle < 0.6
    assert separate.busy.likely == pytest.approx(separate.held.likely * (1 - separate.idle))
    assert colocated.held.likely < 0.7 * separate.held.likely
    assert colocated.idle < 0.1
    assert pipelined.held.likely < 0.7 * separate.held.likely
    # Weights and moments of a rank of eight are 10.5 GiB of 74.5, and a tenth is left free.
    assert costs.options[2].memory_share == 0.75
    said = "\n".join(in_all([costs], 1000))
    assert "{placement: colocated, learner_ranks: 8, replicas: 8, engine: {sleep: 1, memory_share: 0.75}} saves" in said


def test_what_is_recommended_is_a_preset_of_as_many_gpus_with_nothing_left_to_recommend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preset = load(preset="paper")
    engine = EngineConfig(sleep=1, memory_share=0.75)
    turns = {"placement": "colocated", "learner_ranks": 8, "replicas": 8, "engine": engine}
    resources = ResourcesConfig(device="cuda", sampler="vllm", **turns)
    assert preset.model_copy(update={"resources": resources}).devices_of_a_worker() == 8
    costs = seven(monkeypatch, **turns)
    assert [option.title for option in costs.options] == ["colocated, as set", "separate", "pipelined, off-policy"]
    assert (costs.options[1].placement.ranks, costs.options[1].placement.engines) == (4, 4)
    assert "\n".join(in_all([costs], 0)).endswith("what is set")
    other = seven(monkeypatch)
    assert costs.spent(costs.options[0]).held.likely == pytest.approx(other.spent(other.options[2]).held.likely)


def test_engines_are_put_beside_no_update_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACED, "temporary", 60 * GIB)
    costs = seven(monkeypatch)
    assert [option.title for option in costs.options] == ["separate, as set", "pipelined, off-policy"]
    assert "\n".join(in_all([costs], 0)).endswith("what is set")


def test_a_length_that_is_not_positive_is_refused() -> None:
    for tokens in (0.0, float("nan")):
        with pytest.raises(ExperimentError, match="--response-tokens is"):
            Terms(response_tokens=tokens)


def test_more_engines_do_not_pay_for_a_small_batch_and_do_for_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = list(seven(monkeypatch).replica_lines())[2:]
    assert small.split()[:4] == ["B_p", "32,", "n", "8"]
    assert small.endswith("from 2 on GPU-seconds rise by more than the time falls")
    assert large.split()[:4] == ["B_p", "256,", "n", "64"]
    assert large.endswith("up to 8 the time falls by more than GPU-seconds rise")


def test_a_head_and_an_update_in_float32_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = seven(monkeypatch)

    def seconds(**compute: Any) -> float:
        learner = costs.footprint.cell.learner
        changed = replace(learner, compute=replace(learner.compute, **compute))
        of = replace(costs.footprint, cell=replace(costs.footprint.cell, learner=changed))
        return replace(costs, footprint=of).update(1).likely

    plain = seconds(float32_head=False)
    assert 1.2 * plain < seconds(float32_head=True) < 2 * plain
    assert seconds(precision="float32") == pytest.approx(plain * 989 / 67)


def test_an_update_is_traced_once_until_anything_of_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen = []

    def known(*asked: Any, ranks: int) -> UpdateMemory:
        seen.append((*asked, ranks))
        return UpdateMemory(parameters=len(seen), ranks=ranks, **TRACED)

    known.__module__ = footprint.update_memory.__module__
    monkeypatch.setattr(footprint, "update_memory", known)
    model, config = {"width": 8}, LearnerConfig(learning_rate=1.0)
    load, other = Load(prompt_tokens=1, response_tokens=2, rollouts_per_problem=3, problems=4), {"width": 9}
    asked = [(model, config, load, 2), (other, config, load, 2), (model, replace(config, learning_rate=2.0), load, 2)]
    asked += [(model, config, replace(load, problems=5), 2), (model, config, load, 3)]

    def traced(number: int = 0) -> int:
        *given, ranks = asked[number]
        return footprint.traced(*given, ranks=ranks).parameters

    for _ in range(2):
        assert [traced(number) for number in range(len(asked))] == [1, 2, 3, 4, 5]
    for name in ("code_of", "versions"):
        with monkeypatch.context() as patch:
            patch.setattr(footprint, name, lambda *of: {"torch": "0"})
            assert traced() == len(seen) > 5
    kept = list((tmp_path / "isocompute" / "traces").iterdir())
    # What is torn, or of another kind, is traced again.
    for text in ("", "[", "{}", json.dumps({**TRACED, "parameters": 1, "ranks": 2, "weights": "7"})):
        for file in kept:
            file.write_text(text)
        assert traced() == traced() == len(seen) > 7
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept[0]))
    assert traced() == len(seen)
