"""What makes two runs one and the same, and what does not."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from isocompute.learner.config import ObjectiveConfig, OptimizerConfig

from experiments.running import cells, work
from experiments.running.cells import problems_hash
from experiments.settings import ResourcesConfig

from .made import cell

pytestmark = pytest.mark.slow("hashes of all code, again and again")

ROOT = Path(__file__).parents[2]


def test_the_budget_and_the_purpose_are_no_part_of_the_identity() -> None:
    one = cell()
    assert one.run_id == cell(rollouts=192).run_id == cell(purpose="prescribe").run_id
    others = [
        cell(seed=8),
        cell(rollouts_per_problem=8),
        cell(evaluate_every=96),
        cell(base="retrained"),
        cell(learner=replace(one.learner, optimizer=OptimizerConfig(decay="cosine", decay_steps=12))),
        cell(learner=replace(one.learner, objective=ObjectiveConfig(std="population"))),
        cell(surroundings={"device": "cuda"}),
        cell(surroundings={"engine": {"dtype": "bfloat16"}}),
        cell(surroundings={"code": "other"}),
        cell(surroundings={"versions": {"torch": "9"}}),
        cell(surroundings={"learner_ranks": 2}),
    ]
    assert len({one.run_id, *(other.run_id for other in others)}) == 1 + len(others)


def test_a_first_evaluation_is_shared_by_all_n_of_a_seed_and_by_no_other_seed() -> None:
    one = cell()
    assert one.start_id == cell(rollouts_per_problem=8).start_id == cell(problems_per_batch=4).start_id
    assert len({one.start_id, cell(seed=8).start_id, cell(base="c").start_id}) == 3


def test_the_number_of_engines_is_part_of_the_identity_and_one_engine_adds_nothing_to_it() -> None:
    own = {"sampler": "transformers", "placement": "separate"}
    one, two = (cells.computing(ResourcesConfig(**own, replicas=n)) for n in (2, 3))
    assert one != two
    alone = cells.computing(ResourcesConfig(sampler="transformers"))
    assert alone["placement"] == "colocated"
    assert set(alone) == {"sampler", "device", "engine", "placement", "learner_ranks"}


def test_a_flipped_sign_is_other_code_and_a_comment_or_a_docstring_is_not(tmp_path: Path) -> None:
    text = (ROOT / "packages/learner/src/isocompute/learner/objective/loss.py").read_text()
    assert text.count("loss=-advantages * policies.logprobs,") == 1
    said = text.replace("    ratio =", "    # A comment.\n    ratio =").replace("token by token", "TOKEN BY TOKEN")
    flipped = text.replace("loss=-advantages * policies.logprobs,", "loss=advantages * policies.logprobs,")
    hashes = []
    for version in (text, said, flipped):
        (tmp_path / "module.py").write_text(version)
        hashes.append(cells.source_hash(tmp_path / "module.py"))
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_text_of_an_error_is_no_code_and_what_is_computed_for_it_is(tmp_path: Path) -> None:
    path = tmp_path / "module.py"

    def hashed(text: str) -> str:
        path.write_text(text)
        return cells.source_hash(path)

    refusals = (ROOT / "packages/learner/src/isocompute/learner/updates/learner.py").read_text()
    texts = re.findall(r'raise \w+\(\s*f?"([^"{]+)', refusals)
    assert texts
    assert hashed(refusals.replace(texts[0], f"Said otherwise: {texts[0]}")) == hashed(refusals)
    with_a_print = refusals + '\n\nif __name__ == "never":\n    print("a", f"b {1 + 1}")\n'
    assert hashed(with_a_print) != hashed(refusals)
    assert hashed(with_a_print.replace('"a", f"b {1 + 1}"', '"c", f"d {1 + 1} e"')) == hashed(with_a_print)
    assert hashed(with_a_print.replace("1 + 1", "1 + 2")) != hashed(with_a_print)


def test_the_code_of_a_cell_is_the_loop_and_what_it_needs() -> None:
    found = cells.closure(cells.LOOP, without=cells.CARRIES_NO_RESULT)
    for needed in (
        "isocompute.learner.objective.loss",
        "isocompute.learner.objective.loss",
        "isocompute.learner.objective.prepare",
        "isocompute.learner.training.loop",
        "isocompute.learner.ranks.group",
        "isocompute.rollout.samplers.vllm.sampler",
        "isocompute.rollout.scoring.judges.tasks",
        "isocompute.rollout.scoring.sandbox.child",
        "isocompute.rollout.scoring.evaluation",
        "isocompute.budget.ledger.meter",
        "experiments.running.worker",
    ):
        assert needed in found, needed
    for free in (
        "experiments.report.page",
        "experiments.settings.model",
        "isocompute.learner.saving.export",
        "isocompute.rollout.problems.hub",
        "isocompute.budget.contract.tracking",
        "experiments.running.tracker",
        "experiments.running.design",
        "experiments.settings.model",
    ):
        assert free not in found, free


def test_a_model_retrained_in_place_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    weights = folder / "model.safetensors"
    # Large enough for its hash to be remembered, which must not outlive the file.
    weights.write_bytes(b"\0" * work.LARGE)
    before = work.content(folder)
    assert work.content(folder) == before
    changed = bytearray(weights.read_bytes())
    changed[5] = 1
    weights.write_bytes(changed)
    assert work.content(folder) != before


def test_how_hard_a_problem_was_found_to_be_is_not_read_by_a_cell() -> None:
    import polars as pl

    table = pl.DataFrame(
        {
            "problem_id": ["a"],
            "prompt": ["1+1="],
            "answer": ["2"],
            "verifier": ["exact"],
            "source": ["s"],
            "split": ["train"],
            "pass_rate": [0.5],
        }
    )
    assert problems_hash(table) == problems_hash(table.with_columns(pass_rate=pl.lit(0.25)))
    assert problems_hash(table) != problems_hash(table.with_columns(answer=pl.lit("3")))
