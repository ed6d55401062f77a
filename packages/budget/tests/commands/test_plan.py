import json

import pytest
from isocompute.budget.cli import main

PLAN = ["plan", "--rollouts", "1.6e6", "--max-batch", "16384", "--problems", "6000", "--max-epochs", "30"]


def test_the_command_prints_the_grid_and_writes_it(tmp_path, capsys):
    path = tmp_path / "plan.json"
    assert main([*PLAN, "--json", str(path), "--cells"]) == 0
    out = capsys.readouterr().out
    assert "1,600,000 rollouts, batches up to 16,384: 28 splits" in out
    assert "left out: 27 splits with more than 30 epochs" in out
    document = json.loads(path.read_text())
    assert len(document["cells"]) == 28
    assert all(cell["epochs"] <= 30 for cell in document["cells"])


MODEL = "--model-parameters 7e9 --response-tokens 2000 --device h100 --world-size 8"


def test_time_memory_and_money_are_estimated_where_the_model_is_known(tmp_path, capsys):
    path = tmp_path / "plan.json"
    more = "--anchor 1e-6 --anchor-batch 1024 --price 2.5"
    assert main([*PLAN, *MODEL.split(), *more.split(), "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "response tokens: 3,200,000,000 (2,400,000,000-4,000,000,000)\n" in out
    assert "memory: 26.1 of 74.5 GiB of h100" in out
    assert "assumed: training reaches 25% to 50%" in out
    assert "assumed: 2.50 USD per device-hour" in out
    for cell in json.loads(path.read_text())["cells"]:
        low, likely, high = cell["seconds_per_step"]
        assert 0 < low < likely < high
        tokens = cell["batch_rollouts"] * 2000
        assert likely == pytest.approx((2 / 0.15 + 6 / 0.35) * 7e9 * tokens / 989e12 / 8)
        assert cell["device_hours"][1] == pytest.approx(likely * 8 * cell["update_steps"] / 3600)
        assert cell["cost"] == pytest.approx([2.5 * hours for hours in cell["device_hours"]])
        assert cell["learning_rate"] == pytest.approx(1e-6 * (cell["batch_rollouts"] / 1024) ** 0.5)


def test_more_that_is_known_narrows_the_estimate(tmp_path, capsys):
    path = tmp_path / "plan.json"
    more = "--layers 32 --width 4096 --prompt-tokens 300 --spread 0 --tokens-per-second 4000 --extra-forwards 1"
    sure = "--training-utilisation 0.4 --active-parameters 3.3B"
    assert main([*PLAN, *MODEL.split(), *more.split(), *sure.split(), "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "assumed: a device generates 4,000 response tokens per second" in out
    assert "assumed: a token passes through 3,300,000,000 of the 7,000,000,000 parameters" in out
    assert "a head in float32" not in out
    assert all(len(set(cell["seconds_per_step"])) == 1 for cell in json.loads(path.read_text())["cells"])
    assert main([*PLAN, *MODEL.split(), *more.split(), "--vocabulary", "152000", "--float32-head"]) == 0
    assert "a head in float32 reaches" in capsys.readouterr().out


def test_one_split_needs_no_limit_on_its_batch(capsys):
    arguments = "plan --rollouts 2e4 --problems-per-batch 8 --rollouts-per-problem 4 --problems 100"
    assert main([*arguments.split(), "--anchor", "1e-3", "--anchor-batch", "128"]) == 0
    assert capsys.readouterr().out.splitlines()[3].split() == ["8", "4", "32", "625", "20,000", "0", "50.00", "0.0005"]
