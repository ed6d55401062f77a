"""Other frameworks' runs read back from the stores that their loggers write to."""

import json
from pathlib import Path

import pytest
from isocompute.budget.trainers.evals import ingest

pytestmark = pytest.mark.slow("MLflow")

FIXTURES = Path(__file__).parents[2] / "packages" / "budget" / "tests" / "fixtures"
QUESTIONS = {"questions": "16"}


def test_verl_from_mlflow_is_verl_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("verl")
    config = json.loads((FIXTURES / "verl" / "config.json").read_text())
    with mlflow.start_run():
        # As veRL logs: nested settings joined by slashes, @ written out.
        mlflow.log_params(
            {
                "data/train_batch_size": config["data"]["train_batch_size"],
                "data/seed": config["data"]["seed"],
                "actor_rollout_ref/rollout/n": 4,
                "actor_rollout_ref/actor/ppo_mini_batch_size": 8,
            }
        )
        for line in (FIXTURES / "verl" / "run.jsonl").read_text().splitlines():
            entry = json.loads(line)
            metrics = {key.replace("@", "_at_"): value for key, value in entry["data"].items()}
            mlflow.log_metrics(metrics, step=entry["step"])
    logged, _ = ingest("verl", ["mlflow:verl"], constants=QUESTIONS)
    written, _ = ingest(
        "verl", [str(FIXTURES / "verl" / "run.jsonl")], config=FIXTURES / "verl" / "config.json", constants=QUESTIONS
    )
    for column in ("step", "rollouts", "tokens", "seed", "avg_at_4", "best_at_4_biased"):
        assert logged[column].to_list() == written[column].to_list()
