"""vLLM loads a saved policy as it loads any model, and answers with its log-probabilities."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from isocompute.learner.saving.export import save_policy
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = [pytest.mark.slow("vLLM"), pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]

# In a process of its own: an engine leaves a process group behind.
ANSWER = """
import json, sys
from vllm import LLM, SamplingParams
engine = LLM(
    model=sys.argv[1], dtype="float32", generation_config="vllm", skip_tokenizer_init=True, enforce_eager=True,
    max_model_len=32, max_num_seqs=4, kv_cache_memory_bytes=2**26, disable_log_stats=True,
    logprobs_mode="processed_logprobs", distributed_executor_backend="uni",
)
prompts = [{"prompt_token_ids": [1, 5, 3]}, {"prompt_token_ids": [7]}]
settings = SamplingParams(max_tokens=8, logprobs=0, seed=0, detokenize=False, top_k=0, ignore_eos=True)
answers = [
    (list(p["prompt_token_ids"]), list(o.token_ids), [step[t].logprob for step, t in zip(o.logprobs, o.token_ids)])
    for p, answer in zip(prompts, engine.generate(prompts, settings, use_tqdm=False)) for o in answer.outputs
]
print("answers " + json.dumps(answers))
"""


def test_vllm_answers_with_the_log_probabilities_of_the_policy_that_was_saved(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    torch.manual_seed(1)
    trained = LlamaForCausalLM(config).eval()
    folder = save_policy(trained.named_parameters(), tmp_path / "base", tmp_path / "policy")
    quiet = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    asked = [sys.executable, "-c", ANSWER, str(folder)]
    done = subprocess.run(asked, capture_output=True, text=True, env={**os.environ, **quiet}, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("answers "))[8:])
    for prompt, response, logprobs in answers:
        with torch.no_grad():
            scores = torch.log_softmax(trained(torch.tensor([prompt + response])).logits[0], -1)
        expected = [float(scores[len(prompt) + i - 1, token]) for i, token in enumerate(response)]
        assert logprobs == pytest.approx(expected, abs=1e-4)
        assert len(response) == 8
