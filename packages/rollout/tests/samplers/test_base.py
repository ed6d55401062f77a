"""Which sampler is opened, groups of responses as record batches, and problems that turn out not to be scorable."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, Sampling, open_sampler
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.actor import connected_ray
from isocompute.rollout.samplers.base import CHEAPER_BELOW, CHEAPER_UP_TO, Columns, Faults, Group, cheaper
from isocompute.rollout.samplers.local import Scoring
from isocompute.rollout.samplers.sampling import Draw, Response, aborted
from isocompute.rollout.samplers.weights import stored_parameters
from isocompute.rollout.scoring.sandbox.process import ScoringConfig
from isocompute.rollout.scoring.scorer import Item, Scorer, Verdict

SIZES = st.integers(0, 10**12) | st.integers(CHEAPER_BELOW - 2, CHEAPER_BELOW + 2)
LENGTHS = st.integers(2, 10**6) | st.integers(CHEAPER_UP_TO - 2, CHEAPER_UP_TO + 2)
DRAW = Draw(samples=3, seed=1, step=2, phase="train", run_id="r", first_sample=5)


def table(responses: list[Response], verdicts: list[Verdict], columns: Columns) -> pl.DataFrame:
    group = Group(
        row=0, problem_id="p", prompt_ids=[7, 8], responses=responses, texts=[str(len(r.ids)) for r in responses]
    )
    batch = columns.batch(group, verdicts, draw=DRAW, version=4)
    return tables.check(pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch]))), "rollouts", where="made")


def test_what_went_wrong_with_a_response_has_a_column_of_its_own() -> None:
    whole = Response(ids=np.array([1, 2], np.int32), logprobs=np.zeros(2, np.float32), finish_reason="length")
    made = table(
        [whole, aborted("the server hung"), whole],
        [Verdict(reward=1.0), Verdict(reward=0.0), Verdict(reward=0.0, error="out of time")],
        Columns(),
    )
    assert made["failure"].to_list() == [None, "the server hung", None]
    assert made["score_error"].to_list() == [None, None, "out of time"]
    assert made["finish_reason"].to_list() == ["length", "aborted", "length"]
    assert made["reward"].to_list() == [1, 0, 0]


@pytest.mark.slow
def test_a_group_with_a_response_that_hangs_holds_up_no_other() -> None:
    # The pattern takes for ever; a comparison of texts is done at once.
    names = [r"exact|regex:^(a+)+$", "exact", "exact"]
    scorer = Scorer(ScoringConfig(seconds=0.5, wall_factor=1000))
    scoring = Scoring(scorer, Faults())
    empty = Response(ids=np.zeros(0, np.int32), logprobs=np.zeros(0, np.float32), finish_reason="stop")
    for row, text in enumerate(("a" * 60 + "!", "a", "b")):
        group = Group(row=row, problem_id=str(row), prompt_ids=[], responses=[empty], texts=[text])
        scoring.submit(group, [Item(verifier=names[row], response=text, answer="a")])
    assert [(group.row, verdicts[0].reward) for group, verdicts in scoring.ready()] == [(1, 1), (2, 0)]
    ((late, verdicts),) = scoring.rest()
    assert (late.row, verdicts[0].error) == (0, "deadline: more than 0.5 s of processor time")
    assert list(scoring.rest()) == []
    scorer.close()


@pytest.mark.slow("a sampler")
def test_responses_to_a_problem_that_cannot_be_scored_are_aborted_with_their_tokens(tiny: Any) -> None:
    pytest.importorskip("reasoning_gym")
    sampler = open_sampler("transformers", str(tiny.folder), tiny.sampling)
    exact = tiny.sample(sampler)
    broken = pl.when(pl.col("problem_id") == "p2").then(pl.lit('{"settings": {"nonsense": 1}}')).otherwise(pl.lit(""))
    problems = tiny.problems.with_columns(verifier=pl.lit("reasoning_gym:gcd"), metadata=broken)
    rollouts = tiny.sample(sampler, problems)
    # They were generated, so that they are charged; no group is missing.
    same = ["problem_id", "sample", "response_ids", "logprobs"]
    assert rollouts.select(same).equals(exact.select(same))
    lost = rollouts.filter(pl.col("finish_reason") == "aborted")
    assert lost["problem_id"].to_list() == ["p2"] * 4
    assert lost["failure"].str.contains("problem cannot be scored: reasoning-gym refuses the task 'gcd'").all()
    # A run of which no problem can be scored stops, once they were paid for.
    sampler.faults.hand_over()
    none = problems.with_columns(metadata=pl.lit('{"settings": {"nonsense": 1}}'))
    assert set(tiny.sample(sampler, none)["finish_reason"]) == {"aborted"}
    with pytest.raises(RolloutError, match="the 6 problems answered"):
        tiny.sample(sampler, none, step=2)


@given(parameters=st.none() | SIZES, longest=LENGTHS, device=st.sampled_from(["cpu", "cuda"]))
def test_transformers_answers_on_a_cpu_with_a_small_model_at_short_length_and_vllm_all_others(
    parameters: int | None, longest: int, device: str
) -> None:
    chosen = cheaper(parameters, longest=longest, device=device)
    small = parameters is not None and parameters < CHEAPER_BELOW and longest <= CHEAPER_UP_TO
    assert chosen.kind == ("transformers" if small and device == "cpu" else "vllm")
    assert str(chosen).startswith(f"{chosen.kind} (")


def test_parameters_are_those_of_the_files_and_tied_ones_count_once(tiny: Any, tied_tiny: Any, tmp_path: Path) -> None:
    for each in (tiny, tied_tiny):
        whole = each.save(tmp_path, seed=0)
        assert stored_parameters(tmp_path) == sum(parameter.numel() for parameter in whole.parameters())
    single = stored_parameters(tmp_path)
    whole.save_pretrained(tmp_path / "parts", max_shard_size="8KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert stored_parameters(tmp_path / "parts") == single


def test_parameters_of_a_model_that_is_no_folder_or_cannot_be_read_are_not_known(tmp_path: Path) -> None:
    assert stored_parameters("Qwen/Qwen2.5-0.5B") is None
    assert stored_parameters(tmp_path) is None
    pytest.importorskip("safetensors")  # comes with an engine, not with the package alone
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    assert stored_parameters(tmp_path) is None


def test_the_client_of_servers_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("isocompute.rollout.samplers.servers.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(RolloutError, match=r"isocompute-rollout\[openai\]"):
        open_sampler("openai", "model", Sampling(), base_url="http://localhost:8000/v1")


def test_a_node_of_a_cluster_joins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sized: list[bool] = []

    def init(**options: Any) -> None:
        sized.append("object_store_memory" in options)
        # As Ray does there; that it is so is tested with experiments' own cluster.
        if sized[-1]:
            raise ValueError("When connecting to an existing cluster, object_store_memory must not be provided.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    connected_ray()
    assert sized == [True, False]
