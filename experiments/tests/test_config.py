from pathlib import Path

import pytest
import yaml
from isocompute.rollout.scoring.rules import REFUSED
from pydantic import ValidationError

from experiments.errors import ExperimentError
from experiments.settings import ResourcesConfig, load
from experiments.settings.model import SECTIONS, leaves, section_of

from .made import PARAMS, changed

MODEL = {"name": "one", "folder": "somewhere"}
SUMS = {"kind": "reasoning_gym", "task": "chain_sum"}


@pytest.mark.parametrize("preset", ["tiny", "smoke", "paper"])
def test_every_preset_is_a_configuration(preset: str) -> None:
    assert load(PARAMS, preset).name == preset


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("sweep.easy.rolouts", 1, "has no setting 'rolouts'"),
        ("sweep.easy.rolouts", 1, "did you mean 'rollouts'"),
        ("colour", "red", "has no setting 'colour'"),
        ("name", "other", "has no setting 'name'"),
        ("difficulty.sets.easy.name", "other", "has no setting 'name'"),
        ("sweep", 3, "sweep is 3"),
        ("sweep.easy", None, "easy is None"),
        ("sweep.easy.seeds", 1, "seeds is 1"),
        ("sweep.easy.seeds", [], r"seeds is \[\]"),
        ("sweep.easy.seeds", [1, 1], "seeds holds 1 twice"),
        ("sweep.easy.seeds", [0, True], r"seeds\[1\] is True"),
        ("sampling.temperature", "1e-4", "of type float .*: 1.0e-4"),
        ("sampling.temperature", 0, "temperature is 0: a"),
        ("base", {"kind": "model", "model": "m", "revision": 5}, "revision is 5"),
        ("base", {"steps": 3}, "base lacks kind"),
        ("problems", [{"kind": "file", "path": "p", "sed": 1}], "no setting 'sed'.*'seed'"),
        ("problems", [{"kind": "web"}], "kind is 'web'"),
        ("resources.sampler", "hf", "sampler is 'hf'"),
        ("sweep.easy.rollouts", 4, "no step could be taken"),
        ("sweep.easy.evaluate_every", 24, "multiple of every batch"),
        ("base", {"kind": "huge"}, "must be model or prepared"),
        ("difficulty.sets.easy.lowest", 2.0, "interval within 0 to 1"),
        ("resources.workers", "two", "must be of type int"),
        ("resources.checkpoints", {"every_evaluations": None}, "checkpoints has no"),
        ("prescribe.easy.seeds", [0, 100], "seeds holds 0"),
        ("prescribe.easy.seeds", [900, 100], "seeds holds 900"),
        ("sweep.easy.max_batch_rollouts", 4, "no pair has B_p"),
        ("sweep.easy.max_batch_rollouts", "many", "must be of type int"),
        ("prescribe.easy.seeds", [7, 7], "seeds holds 7 twice"),
        ("prescribe.easy.baselines", [4, 4], "baselines holds 4 twice"),
        ("prescribe.easy.seeds", [100], "one seed gives no"),
        ("prescribe.easy.baselines", [3], "baselines holds 3"),
        ("prescribe.medium", {}, "lacks baselines"),
        ("sweep.easy.rate_factors", [0.0], "rate_factors.0. is 0.0"),
        ("problems", [], "problems is empty"),
        ("difficulty", None, "difficulty is empty"),
        ("base", {"kind": "prepared", "models": []}, "models is .*"),
        ("base", {"kind": "prepared", "models": [MODEL, MODEL]}, "models of the name 'one'"),
        ("base", {"kind": "prepared", "models": [MODEL]}, "problems is given"),
        ("problems", [{**SUMS, "train": -1}], "train is -1"),
        ("problems", [{"kind": "file", "path": "p", "validation": -3}], "validation is -3"),
        ("problems", [SUMS, {**SUMS, "train": 0, "validation": 0}], r"problems\[1\] asks for no"),
        ("problems", [{**SUMS, "task": "game_of_life_halting"}], "game_of_life_halting"),
        ("evaluation", {"samples": 8, "metric": "avg_at_4"}, "it must be avg_at_8"),
        ("sampling.top_p", 0.9, "with top_p 1.0"),
        ("difficulty.fresh_samples", 0, "must be at least 1"),
        ("resources", {"dtype": "bfloat16"}, "which only vLLM on cuda"),
        ("resources", {"sampler": "vllm", "engine": {"dtype": "bfloat16"}}, "dtype is set"),
        ("resources", {"sampler": "vllm", "engine": {"profile": "cuda"}}, "it follows resources"),
        ("resources", {"sampler": "vllm", "engine": {"max_concurrent": 0}}, "max_concurrent is 0"),
        ("resources", {"sampler": "transformers", "engine": {"max_concurrent": 8}}, "sampler is transformers"),
        ("resources", {"sampler": "vllm", "engine": {"chunked_prefill": True}}, "engine cannot run: engine"),
        (
            "resources",
            {"sampler": "vllm", "device": "cuda", "engine": {"tensor_parallel": 2}},
            "set placement to separate",
        ),
        ("resources", {"sampler": "vllm", "replicas": 2}, "replicas is 2, "),
        ("resources", {"sampler": "vllm", "device": "cuda", "engine": {"sleep": 2}}, "by no sync: set it to 1"),
        (
            "resources",
            {"sampler": "vllm", "device": "cuda", "placement": "separate", "engine": {"sleep": 1}},
            "separate engine's device",
        ),
        ("resources", {"sampler": "vllm", "engine": {"sleep": 1}}, "vLLM on CPU frees nothing"),
        ("sampling.top_k", 5, "with top_k 0"),
        ("prompting", {"template": "jinja"}, "template is 'jinja'"),
        ("scoring", {"second": 5}, "no setting 'second'"),
    ],
)
def test_what_cannot_be_is_one_clear_error(change: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=message) as refused:
        load(changed(tmp_path, change, value), "smoke")
    assert len(str(refused.value).splitlines()) == 1
    assert "pydantic" not in str(refused.value)


def test_solved_problems_are_not_dropped_where_a_penalty_hides_which_are_solved(tmp_path: Path) -> None:
    raw = yaml.safe_load(PARAMS.read_text())
    raw["smoke"]["sampling"]["length_penalty"] = {"longest": 12, "margin": 4}
    raw["smoke"]["sweep"]["hard"]["learner"] = {"batch": {"drop_above": 0.9}}
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(ExperimentError, match=r"sweep\.hard\.learner\.batch\.drop_above"):
        load(path, "smoke")


def test_settings_made_in_code_are_as_strict_and_do_not_change() -> None:
    made = ResourcesConfig(workers=3)
    with pytest.raises(ValidationError, match="frozen"):
        made.workers = 4
    with pytest.raises(ValidationError, match="valid integer"):
        ResourcesConfig(workers="3")  # type: ignore[arg-type]


def test_lists_are_tuples_and_whole_numbers_are_floats_where_those_are_wanted(tmp_path: Path) -> None:
    preset = load(changed(tmp_path, "sampling.temperature", 1), "smoke")
    assert preset.sweep["easy"].seeds == (0, 1)
    assert repr(preset.sampling.temperature) == "1.0"


def test_nothing_need_be_tested(tmp_path: Path) -> None:
    assert load(changed(tmp_path, "prescribe", {}), "smoke").prescribe == {}


def test_several_base_models_have_their_problem_sets_and_a_declared_rate(tmp_path: Path) -> None:
    raw = yaml.safe_load(PARAMS.read_text())
    models = [MODEL, {**MODEL, "name": "two"}]
    raw["smoke"] |= {"base": {"kind": "prepared", "models": models}, "problems": [], "difficulty": None}
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(ExperimentError, match="learning_rate is searched"):
        load(path, "smoke")
    for sweep in raw["smoke"]["sweep"].values():
        sweep["learning_rate"] = {"rule": "sqrt", "learning_rate": 1e-3}
    path.write_text(yaml.safe_dump(raw))
    assert load(path, "smoke").base_models == ("one", "two")


def test_a_source_may_give_problems_to_one_side_only(tmp_path: Path) -> None:
    sources = [{**SUMS, "train": 9, "validation": 0}, {**SUMS, "train": 0, "validation": 9}]
    read = load(changed(tmp_path, "problems", sources), "smoke").problems
    assert [(source.train, source.validation) for source in read] == [(9, 0), (0, 9)]


@pytest.mark.parametrize("task", sorted(REFUSED))
def test_every_task_that_is_refused_is_no_setting(task: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=f"task is '{task}', a task that is refused"):
        load(changed(tmp_path, "problems", [{**SUMS, "task": task}]), "smoke")


def test_an_unknown_preset_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="there is no preset 'huge'"):
        load(PARAMS, "huge")
    with pytest.raises(ExperimentError, match="cannot be read"):
        load(tmp_path / "params.yaml")


def test_the_grid_is_cut_off_at_the_largest_batch(tmp_path: Path) -> None:
    sweep = load(changed(tmp_path, "sweep.hard.max_batch_rollouts", 8), "smoke").sweep["hard"]
    assert sweep.grid() == [(2, 4)]
    # The paper's grids: 39 pairs under 65,536 on Easy, 27 under 16,384 on Hard.
    paper = load(PARAMS, "paper")
    assert [len(paper.sweep[name].grid()) for name in ("easy", "hard")] == [39, 27]


def test_the_problem_sets_that_dvc_runs_are_those_of_the_preset(tmp_path: Path) -> None:
    raw = yaml.safe_load(PARAMS.read_text())
    for key, section in (("problem_sets", "sweep"), ("tested_sets", "prescribe")):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump({**raw, key: ["easy"]}))
        with pytest.raises(ExperimentError, match=rf"{key} is \['easy'\], and tiny.{section} has"):
            load(tmp_path / "params.yaml")


def test_every_value_of_the_papers_preset_says_where_it_is_from() -> None:
    raw = yaml.safe_load(PARAMS.read_text())["paper"]
    names = [name for name, _ in leaves(raw)]
    assert [name for name in names if section_of(name) is None] == []
    # And no section is of a value that is not there.
    generic = {".".join([p[0], "*", *p[2:]]) for p in (n.split(".") for n in names) if len(p) > 2}
    known = {*names, *generic, *(name.split(".")[0] for name in names)}
    assert [name for name in SECTIONS if name not in known] == []


def test_the_papers_preset_is_the_papers_experiment() -> None:
    paper = load(PARAMS, "paper")
    easy = paper.sweep["easy"]
    assert [n * size for n, size in easy.searched()] == [1024]
    assert easy.learning_rate.rule == "sqrt"
    assert easy.search is not None
    rates = easy.search.learning_rates
    assert 1e-6 in rates
    assert min(rates) < 1e-6 < max(rates)
    assert (paper.sampling.max_new_tokens, paper.sampling.top_p, paper.sampling.temperature) == (8192, 1.0, 0.6)
    assert len(paper.problems[0].revision) == 40  # type: ignore[union-attr]


@pytest.mark.parametrize("revision", ["", "main"])
def test_a_dataset_without_a_pinned_commit_is_refused(tmp_path: Path, revision: str) -> None:
    source = {"kind": "hub", "dataset": "LLM360/guru-RL-92k", "revision": revision}
    with pytest.raises(ExperimentError, match=r"guru-RL-92k.*pin a commit"):
        load(changed(tmp_path, "problems", [source]), "smoke")


@pytest.mark.parametrize(
    "name", ["easy; touch X #", "$(id)", "Easy", "-x", "a b", "", "easy.parquet", "../easy", "a\nb"]
)
def test_a_name_that_a_shell_or_a_path_would_read_otherwise_is_refused(name: str, tmp_path: Path) -> None:
    raw = yaml.safe_load(PARAMS.read_text())
    for section in (raw["smoke"]["sweep"], raw["smoke"]["prescribe"], raw["smoke"]["difficulty"]["sets"]):
        section[name] = section.pop("easy")
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(ExperimentError, match="lower-case letters") as refused:
        load(path, "smoke")
    assert len(str(refused.value).splitlines()) == 1


def test_a_preset_and_a_problem_set_to_be_run_have_such_names_too(tmp_path: Path) -> None:
    raw = yaml.safe_load(PARAMS.read_text())
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({**raw, "smoke; id": raw["smoke"]}))
    with pytest.raises(ExperimentError, match="lower-case"):
        load(path, "smoke; id")
    path.write_text(yaml.safe_dump({**raw, "problem_sets": ["easy; touch X #"]}))
    with pytest.raises(ExperimentError, match=r"'easy; touch X #'.*lower-case letters, digits"):
        load(path, "smoke")


@pytest.mark.parametrize("base", [{}, {"revision": ""}, {"revision": "main"}, {"revision": "v1.0"}])
def test_a_model_of_the_hub_without_a_pinned_commit_is_refused(tmp_path: Path, base: dict[str, str]) -> None:
    named = {"kind": "model", "model": "Qwen/Qwen2.5-0.5B", **base}
    with pytest.raises(ExperimentError, match=r"base\.revision is '.*'"):
        load(changed(tmp_path, "base", named), "smoke")


def test_a_model_that_is_a_folder_needs_no_commit(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    named = {"kind": "model", "model": str(tmp_path / "model")}
    assert load(changed(tmp_path, "base", named), "smoke").base.name == str(tmp_path / "model")  # type: ignore[union-attr]


def test_the_engine_follows_the_resources_and_is_part_of_every_runs_identity(tmp_path: Path) -> None:
    resources = {
        "sampler": "vllm",
        "device": "cuda",
        "placement": "separate",
        "engine": {"max_concurrent": 64, "tensor_parallel": 2},
    }
    preset = load(changed(tmp_path, "resources", resources), "smoke")
    engine = preset.resources.resolved_engine()
    assert (engine.profile, engine.dtype, engine.max_concurrent, engine.tensor_parallel) == ("cuda", "bfloat16", 64, 2)
    # A learner and two GPUs for its engine, for each of two workers.
    assert preset.processors() == 6
    assert load(changed(tmp_path, "resources", {**resources, "replicas": 3}), "smoke").processors() == 14
    # Where its ranks and engines are all actors, a worker's own process takes no GPU.
    apart = {**resources, "learner_ranks": 2}
    assert load(changed(tmp_path, "resources", apart), "smoke").processors() == 8
    assert load(changed(tmp_path, "resources", apart), "smoke").resources.own_gpus == 0
    assert preset.resources.own_gpus == 1
    assert engine.memory_share is None
    shared = load(changed(tmp_path, "resources", {"sampler": "vllm", "device": "cuda"}), "smoke").resources
    assert shared.resolved_engine().memory_share == 0.4
    assert set(preset.generation) == {"sampling", "prompting", "scoring"}
