"""transformers on a tiny random model."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_sampler import *  # noqa: F403
from every_sync import *  # noqa: F403
from isocompute.rollout import Interruption, RolloutError, open_pipe, open_sampler
from isocompute.rollout.cli import main
from isocompute.rollout.samplers.sampling import Request, Response, as_it_is
from isocompute.rollout.samplers.transformers import TransformersSampler

pytestmark = pytest.mark.slow("every test of a sampler")


@pytest.fixture(scope="module")
def sampler(tiny: Any) -> Any:
    return open_sampler("transformers", str(tiny.folder), tiny.sampling)


@pytest.fixture(scope="module")
def tied_sampler(tied_tiny: Any) -> Any:
    return open_sampler("transformers", str(tied_tiny.folder), tied_tiny.sampling)


@pytest.fixture
def calls(sampler: Any) -> Iterator[list[tuple[int, ...]]]:
    """The shape of the logits of every call of the model: responses, places, vocabulary."""
    seen: list[tuple[int, ...]] = []
    hook = sampler._policy.register_forward_hook(lambda module, given, out: seen.append(tuple(out.logits.shape)))
    yield seen
    hook.remove()


def test_a_response_leaves_the_batch_when_it_is_finished(sampler: Any, tiny: Any, calls: list[Any]) -> None:
    finished = filter(None, sampler._generate(tiny.requests(64), as_it_is))
    whole = [(len(calls), len(response.ids)) for _, response in finished]
    lengths = np.array([length for _, length in whole])
    assert [made for made, _ in whole] == lengths.tolist() == sorted(lengths)
    assert len(set(lengths)) > 3
    # Nothing is computed for a response that is finished: one row of a call per token, and one for the prompt of all.
    assert [rows for rows, _, _ in calls] == [1, *(int((lengths > step).sum()) for step in range(1, 8))]
    # Logits of a whole prompt would not fit: they are computed for its last token alone.
    assert {places for _, places, _ in calls} == {1}


def test_a_request_that_follows_goes_on_from_the_response_and_waits_for_others_of_its_length(
    sampler: Any, tiny: Any, calls: list[Any]
) -> None:
    asked = tiny.requests(20, length=3)
    begun: dict[int, Response] = {}

    def twice(index: int, response: Response) -> Request | Response:
        if response.finish_reason == "stop" or index in begun:
            return response
        begun[index] = response
        return Request(prompt_ids=[*asked[index].prompt_ids, *response.ids.tolist()], seed=index, max_new_tokens=2)

    ended = dict(filter(None, sampler._generate(asked, twice)))
    assert sorted(ended) == list(range(20))
    assert 5 < len(begun) < 20
    # All follow-ups have one length here, and go together: those of three tokens, then what is left for a second one.
    assert len(calls) == 3 + 2
    assert calls[3][0] == len({tuple(first.ids) for first in begun.values()})


def test_prompts_of_several_lengths_are_answered_together_as_they_are_alone(
    sampler: Any, tiny: Any, calls: list[Any]
) -> None:
    prompts = ("1+1=", "2+1+1=", "-3+12-1=", "4=", "4+1=")
    asked = [each for count, text in enumerate(prompts, 1) for each in tiny.requests(count, prompt=text)]
    together = dict(filter(None, sampler._generate(asked, as_it_is)))
    # Of 2 to 4 tokens, and then those of 6 and 8, since little is to be computed for padding; each is read once for all
    # responses to it.
    lengths = [max(len(together[index].ids) for index in part) for part in ([0, *range(6, 15)], range(1, 6))]
    assert [rows for rows, _, _ in calls][:: lengths[0]][:2] == [3, 2]
    assert len(calls) == sum(lengths)
    for index, request in enumerate(asked):
        ((_, alone),) = filter(None, sampler._generate([request], as_it_is))
        assert together[index].ids.tolist() == alone.ids.tolist()
        assert np.abs(together[index].logprobs - alone.logprobs).max() < 1e-5


def test_a_model_that_padding_changes_is_given_none(tiny: Any, sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, forward = tiny.sample(sampler)["response_ids"].to_list(), TransformersSampler.forward
    monkeypatch.setattr(
        TransformersSampler, "forward", lambda self, given, mask, cache: forward(self, given, None, cache)
    )
    deaf = open_sampler("transformers", str(tiny.folder), tiny.sampling)
    assert tiny.sample(deaf)["response_ids"].to_list() == expected
    with pytest.raises(RolloutError, match="other scores beside padding"):
        open_pipe(deaf, "virtual", slots=4)


def test_a_batch_smaller_than_the_requests_and_problems_that_come_while_others_are_answered_change_nothing(
    sampler: Any, tiny: Any
) -> None:
    small = open_sampler("transformers", str(tiny.folder), tiny.sampling, batch_size=3)
    cut = Interruption(lowest=2, highest=4, phrase="-1")
    assert tiny.sample(small)["response_ids"].to_list() == tiny.sample(sampler)["response_ids"].to_list()
    for sampling in (tiny.sampling, dataclasses.replace(tiny.sampling, interruption=cut)):
        small.use(sampling)
        assert tiny.sample(small).drop("logprobs").equals(tiny.sample_fed(small).drop("logprobs"))


def test_lower_precision_samples_from_nearly_the_same_policy(tiny: Any, tmp_path: Path) -> None:
    low = open_sampler("transformers", str(tiny.folder), tiny.sampling, dtype="bfloat16")
    for version, seed in ((0, 0), (1, 5)):
        policy = tiny.save(tmp_path, seed=seed)
        if version:
            low.sync(policy.state_dict(), version)
        assert 1e-3 < np.mean(tiny.differences(policy, tiny.sample(low, samples=16))) < 0.05


def test_settings_of_the_engine_that_cannot_be_are_named(tiny: Any) -> None:
    for options, message in (
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of float32, bfloat16, float16"),
        ({"batch_size": 0}, "batch_size is 0; it must be a whole number of at least 1"),
        ({"device": "nowhere"}, "device is 'nowhere', where the model cannot be placed"),
    ):
        with pytest.raises(RolloutError, match=message):
            open_sampler("transformers", str(tiny.folder), tiny.sampling, **options)


def test_responses_leave_the_caches_of_sliding_windows_and_of_linear_attention_too(tiny: Any, tmp_path: Path) -> None:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Qwen3NextConfig, Qwen3NextForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": len(tiny.tokenizer),
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "initializer_range": 0.3,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "bos_token_id": None,
        "tie_word_embeddings": True,
    }
    mixture = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    linear = {f"linear_{name}": 16 for name in ("key_head_dim", "value_head_dim")}
    linear |= {f"linear_num_{name}_heads": 2 for name in ("key", "value")}
    sliding = Gemma3ForCausalLM(Gemma3TextConfig(**shape, sliding_window=3, layer_types=["sliding_attention"] * 4))
    hybrid = Qwen3NextForCausalLM(Qwen3NextConfig(**shape, **mixture, **linear, shared_expert_intermediate_size=16))
    for name, policy in (("sliding", sliding.eval()), ("hybrid", hybrid.eval())):
        tiny.tokenizer.save_pretrained(tmp_path / name)
        policy.save_pretrained(tmp_path / name)
        opened = open_sampler("transformers", str(tmp_path / name), tiny.sampling)
        # Some end where others go on.
        assert tiny.largest_difference(policy, tiny.sample(opened, samples=8)) < 1e-4


def test_a_model_without_a_cache_of_keys_and_values_is_refused(tiny: Any, tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    tiny.tokenizer.save_pretrained(tmp_path)
    config = MambaConfig(
        vocab_size=len(tiny.tokenizer), hidden_size=8, state_size=4, num_hidden_layers=1, pad_token_id=0
    )
    MambaForCausalLM(config).save_pretrained(tmp_path)
    recurrent = open_sampler("transformers", str(tmp_path), tiny.sampling)
    with pytest.raises(RolloutError, match="cache of keys and values"):
        tiny.sample(recurrent)


@pytest.mark.parametrize("how", ["missing", "without a config", "corrupted"])
def test_a_base_model_that_cannot_be_loaded_is_one_line(
    how: str, tiny: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "model", tmp_path / "rollouts.parquet"
    if how != "missing":
        shutil.copytree(tiny.folder, model)
    if how == "without a config":
        (model / "config.json").unlink()
    elif how == "corrupted":
        weights = model / "model.safetensors"
        weights.write_bytes(b"\xff" * 100 + weights.read_bytes()[100:])
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    asked = f"generate --sampler transformers --model {model} --problems {tmp_path}/problems.parquet --out {out}"
    assert main(asked.split()) == 2
    lines = capfd.readouterr().err.splitlines()
    assert "Traceback" not in "".join(lines)
    assert [line for line in lines if line.startswith(f"error: the base model {model} cannot be loaded (")]
    assert not out.exists()
