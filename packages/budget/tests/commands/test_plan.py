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



def test_time_and_memory_are_estimated_where_the_model_is_known(tmp_path, capsys):
    model = (
        "--model-parameters 7e9 --response-tokens 2000 --device h100 --world-size 8 --anchor 1e-6 --anchor-batch 1024"
    )
    path = tmp_path / "plan.json"
    assert main([*PLAN, *model.split(), "--json", str(path), "--cells"]) == 0
    out = capsys.readouterr().out
    assert "memory: 26.1 of 74.5 GiB of h100" in out
    assert "assumed: training reaches 25% to 50%" in out
    for cell in json.loads(path.read_text())["cells"]:
        low, likely, high = cell["seconds_per_step"]
        assert 0 < low < likely < high
        assert cell["device_hours"][1] == pytest.approx(likely * 8 * cell["update_steps"] / 3600)
        assert cell["learning_rate"] == pytest.approx(1e-6 * (cell["batch_rollouts"] / 1024) ** 0.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--anchor", "1e-3"], "both --anchor and --anchor-batch"),
        (["--device", "h100"], "needs --model-parameters and --response-tokens as well"),
        (["--min-steps", "1e9"], "no split of 1,600,000 rollouts can be run: "),
    ],
)
def test_what_the_command_cannot_do_is_one_line(arguments, said, capsys):
    assert main([*PLAN, *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_budget_that_no_table_can_hold_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--rollouts", "1e30", "--max-batch", "8"])
    assert "'1e30' is not a whole number of at most 9223372036854775807" in capsys.readouterr().err
