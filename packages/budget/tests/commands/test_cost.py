import json

import pytest
from isocompute.budget.cli import main
from isocompute.budget.planning.devices import DEVICES

COST = ["cost", "--rollouts", "1e6", "--response-tokens", "2000", "--model-parameters", "7e9", "--device", "h100"]


def test_the_command_prints_figures_with_intervals_and_what_they_rest_on(tmp_path, capsys):
    path = tmp_path / "cost.json"
    assert main([*COST, "--price", "2.5", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "assumed: 2.50 USD per device-hour" in out
    assert "which does not fit" in out
    figures = json.loads(path.read_text())["figures"]
    assert figures["response tokens"] == {"low": 1.5e9, "likely": 2e9, "high": 2.5e9}
    assert figures["FLOPs of sampling"]["likely"] == 2 * 7e9 * 2e9
    assert figures["FLOPs of training"]["likely"] == 6 * 7e9 * 2e9
    assert figures["cost (USD)"]["likely"] == pytest.approx(2.5 * figures["device-hours"]["likely"])


def test_more_that_is_known_narrows_the_estimate(capsys):
    more = "--layers 32 --width 4096 --prompt-tokens 300 --rollouts-per-problem 16 --world-size 8 --spread 0"
    sure = "--generation-utilisation 0.2 --training-utilisation 0.3,0.4,0.5 --tokens-per-second 4000 --extra-forwards 1"
    assert main([*COST, *more.split(), *sure.split()]) == 0
    out = capsys.readouterr().out
    assert "attention is " in out
    assert "sharing prompts saves 3.96e+18 FLOPs of prefill" in out
    assert "hours on 8 devices" in out
    assert "assumed: a device generates 4,000 response tokens per second" in out
    assert out.split("device-hours of sampling")[1].split()[:3] == ["139"] * 3


def test_a_model_of_half_a_shape_is_one_line(capsys):
    assert main([*COST, "--layers", "32"]) == 2
    assert "needs both the layers and the width" in capsys.readouterr().err
    assert set(DEVICES) >= {"a100", "h100"}


def test_a_mixture_of_experts_is_held_whole_and_costs_its_active_parameters(capsys):
    mixture = ["cost", "--rollouts", "1e6", "--response-tokens", "2000", "--device", "h100"]
    assert main([*mixture, "--model-parameters", "30.5B", "--active-parameters", "3.3B"]) == 0
    out = capsys.readouterr().out
    assert "memory: 511.3 of 74.5 GiB of h100" in out
    assert "assumed: a token passes through 3,300,000,000 of the 30,500,000,000 parameters" in out
    assert out.split("FLOPs of sampling")[1].split()[1] == "1.32e+19"
