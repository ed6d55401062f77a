"""Groups with signal, and what became of a run, by the commands."""

import json
import shutil

import pytest
from isocompute.budget.cli import main
from isocompute.budget.trainers.course import course_of
from isocompute.budget.trainers.logs.log import Log
from reading_logs import DOCS


def figures(tmp_path, *arguments):
    assert main(["signal", *arguments, "--json", str(tmp_path / "out.json")]) == 0
    return json.loads((tmp_path / "out.json").read_text())


def test_a_pass_rate_is_given_with_the_spread_that_is_assumed(tmp_path, capsys):
    found = figures(tmp_path, "--pass-rate", "0.18", "--spread", "3.75", "--n", "2,8")
    assert [row["share"] for row in found["shares"]] == pytest.approx([0.233, 0.586], abs=1e-3)
    assert [row["share_alike"] for row in found["shares"]] == pytest.approx([0.295, 0.796], abs=1e-3)
    assert "assumed: pass rates are Beta(0.675, 3.08)" in capsys.readouterr().out


def test_a_histogram_and_a_table_of_the_same_counts_agree(tmp_path):
    counts = {0: 5, 1: 2, 4: 2, 8: 1}
    histogram, table = tmp_path / "rates.csv", tmp_path / "pass_rates.csv"
    histogram.write_text("pass_rate,problems,samples\n" + "".join(f"{k / 8},{m},8\n" for k, m in counts.items()))
    # The last step alone is read.
    rows = ["r,0,early,8,8\n", *(f"r,9,{k}-{j},{k},8\n" for k, m in counts.items() for j in range(m))]
    table.write_text("run_id,step,problem_id,successes,samples\n" + "".join(rows))
    one, other = figures(tmp_path, "--histogram", str(histogram)), figures(tmp_path, "--pass-rates", str(table))
    assert one["shares"] == other["shares"]
    shares = [row["share"] for row in one["shares"]]
    # Of groups of 8 responses exactly those with a success and a failure; more responses find no less.
    assert shares[2] == pytest.approx(0.4)
    assert shares == sorted(shares)


def test_a_log_has_the_share_that_it_logged_beside_what_its_rewards_predict(tmp_path):
    found = figures(tmp_path, str(DOCS / "n4"), "--n", "4,16")
    reward, had, alike, spread = found["logged"]["last fifth"]
    assert found["shares"][0]["share"] == pytest.approx(had, abs=1e-9)
    assert alike == pytest.approx(1 - reward**4 - (1 - reward) ** 4)
    assert spread < had < alike


def test_doctor_says_what_became_of_one_run(tmp_path, capsys):
    shutil.copytree(DOCS / "n4", tmp_path / "n4")
    assert main(["doctor", str(tmp_path / "n4"), "--out", str(tmp_path / "out")]) == 0
    assert "what became of it: still rising\n" in capsys.readouterr().out
    (run,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["runs"]
    assert run["became"]["verdict"] == "still rising"
    # Of several runs there is no one course.
    assert main(["doctor", str(DOCS)]) == 0
    assert "what became" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metrics", "kinds"),
    [
        (
            {
                "reward": 0.5,
                "kl": 0.1,
                "grad_norm": 1.0,
                "clip_ratio/region_mean": 0.1,
                "completions/clipped_ratio": 0.3,
            },
            3,
        ),
        ({"critic/score/mean": 0.5, "actor/ppo_kl": 0.1, "actor/grad_norm": 1.0, "actor/pg_clipfrac": 0.1}, 3),
        ({"reward/mean": 0.5, "entropy/mean": 0.4, "optim/grad_norm": 1.0, "response_length/clip_ratio": 0.3}, 2),
    ],
)
def test_what_moves_with_the_reward_is_found_by_any_trainers_names(metrics, kinds):
    found = course_of(Log(name="run", rows=[(step, {**metrics, "eval_reward": 0.9}) for step in (1, 2)]))
    assert (len(found.others), found.training, found.rates) == (kinds, [(1, 0.5), (2, 0.5)], True)


def test_groups_all_right_and_all_wrong_are_added_up():
    rows = [
        (1, {"env/all/reward/total": 0.5, "env/all/by_group/frac_all_good": 0.2, "env/all/by_group/frac_all_bad": 0.3})
    ]
    assert course_of(Log(name="run", rows=rows)).without_signal == [(1, 0.5)]
