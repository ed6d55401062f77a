"""Compare what this tree and another commit compute on this machine: ``python3 -m nox -s golden -- COMMIT``.

Each tree answers the same questions in a process of its own, in one environment and from the old commit's data, and
every number must be the same to the last bit. ``-- COMMIT ledger learner`` asks for some parts, ``-- COMMIT --without
smoke`` for all but some. What later commits move is found by its name, what they rename is renamed here.
"""

import argparse
import importlib.util
import json
import os
import pkgutil
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing, redirect_stdout, suppress
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("budget", "rollout", "learner", "frontier")
SCALERL = Path(os.environ.get("ISOCOMPUTE_SCALERL", ROOT.parent / "shared" / "data" / "scalerl" / "points.csv"))
"""A series of ScaleRL's, which is not in the repository; where it is not found, it is said to be skipped."""
SETTINGS = {
    "verl": "actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=8 data.train_batch_size=16 "
    "actor_rollout_ref.actor.ppo_epochs=1 data.gen_batch_size=16 questions=25 data.seed=5 "
    "algorithm.filter_groups.enable=false",
    "openrlhf": "rollout.n_samples_per_prompt=8 rollout.batch_size=16 train.batch_size=64 train.max_epochs=1 "
    "eval.n_samples_per_prompt=4 algo.dynamic_filtering_enable=true questions=16",
    "prime-rl": "orchestrator.group_size=4 orchestrator.batch_size=32 questions=16 scale=rate",
}
"""Settings that the logs of some trainers lack."""


def find(package: str, name: str) -> Any:
    """A definition of ``isocompute.PACKAGE``, wherever it stands."""
    top = importlib.import_module(f"isocompute.{package}")
    for module in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
        source = Path(importlib.util.find_spec(module.name).origin).read_text()  # type: ignore[union-attr,arg-type]
        if re.search(rf"^(def|class) {name}\b|^{name}\b.* = ", source, re.MULTILINE):
            return getattr(importlib.import_module(module.name), name)
    raise LookupError(f"isocompute.{package} defines no {name}: rename it in tools/golden.py, too")


def command(tree: Path, package: str, *words: str) -> list[str]:
    """The lines that a package's command prints."""
    scripts = tomllib.loads((tree / "packages" / package / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, main = scripts[f"isocompute-{package}"].partition(":")
    with redirect_stdout(StringIO()) as said:
        code = getattr(importlib.import_module(module), main)([*words])
    return [*said.getvalue().splitlines(), f"exit code {code}"]


def table(path: Path) -> list[str]:
    """The rows of a table; those of runs without their names, which are hashes of the code, and sorted."""
    import polars as pl

    frame = pl.read_parquet(path)
    rows = [repr(row) for row in frame.select(sorted(set(frame.columns) - {"run_id"})).rows(named=True)]
    return sorted(rows) if "run_id" in frame.columns else rows


def frontier(tree: Path, old: Path) -> Iterator[tuple[str, Any]]:
    """Answers, and the draws they are made from."""
    docs = "packages/frontier/docs"
    yield "doctor", command(tree, "budget", "doctor", "packages/budget/docs/trl", "--out", "runs")
    for name, *words in (
        ("playbook", f"{docs}/playbook-easy.csv", "--budget", "1e6"),
        ("trl", "runs", "--batch-rollouts", "64"),
        ("sweep", f"{docs}/sweep.csv"),
    ):
        yield f"answer, {name}", command(tree, "frontier", "fit", *words, "--out", name)
        saved = json.loads(Path(name, "posterior.json").read_text())
        saved["split_r_hat"] = saved.get("split_r_hat") or saved.pop("spread")
        for finding in (found for health in saved["health"] for found in health["findings"]):
            finding.pop("handling", None)
        yield f"posterior, {name}", saved
        yield f"draws, {name}", table(Path(name, "draws.parquet"))


def forecast(tree: Path, old: Path) -> Iterator[tuple[str, Any]]:
    """Forecasts of a run and, where there is one, of a series of ScaleRL's."""
    sweep = "packages/frontier/docs/sweep.csv --where rollouts_per_problem=4 --where seed=1 --x rollouts --y avg_at_4"
    runs = {"sweep": f"{sweep} --fit-max 10240"}
    yield "skipped", [] if SCALERL.exists() else [str(SCALERL)]
    if SCALERL.exists():
        runs["scalerl"] = f"{SCALERL} --where series=ScaleRL --x gpu_hours --y pass_rate --fit-max 8000"
    for name, words in runs.items():
        yield name, command(tree, "frontier", "predict", *words.split(), "--json", f"{name}.json")
        yield f"{name}, numbers", json.loads(Path(f"{name}.json").read_text())


def doctor(tree: Path, old: Path) -> Iterator[tuple[str, Any]]:
    """Read each trainer's logs: those of the fixtures, and runs of filtered prompts."""
    folder, rng = "packages/budget/tests/fixtures", random.Random(0)
    rows: dict[str, list[dict[str, float]]] = {"openrlhf": [], "prime-rl": []}
    for s in range(1, 9):
        rate, made = 100 * 16 * 8 / rng.randint(16, 60), 32 + 4 * rng.randint(0, 9)
        trained = {"train/global_step": s, "train/dynamic_filtering_pass_rate": rate, "train/response_length": 5.0 + s}
        rows["openrlhf"] += [trained, {"eval/global_step": s, "eval/eval_math_pass1": s / 16}]
        rows["prime-rl"] += [{"step": s, "progress/rollouts": made, "progress/tokens": 320, "eval/math/avg@4": s / 16}]
    for name, own in rows.items():
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    sources = {"trl": "packages/budget/docs/trl", "fixture": f"{folder}/trl", "wandb": f"{folder}/wandb"}
    sources |= {"missing": f"{folder}/verl", "verl": f"{folder}/verl/run.jsonl", **{k: f"{k}.jsonl" for k in rows}}
    for name, source in sources.items():
        settings = [word for one in SETTINGS.get(name, "").split() for word in ("--set", one)]
        yield f"said, {name}", command(tree, "budget", "doctor", source, *settings, "--out", f"out-{name}")
        if name != "missing":
            yield f"table, {name}", table(Path(f"out-{name}", "evals.parquet"))


def ledger(tree: Path, old: Path) -> Iterator[tuple[str, Any]]:
    """Sums of random histories: charges of all cohorts, shared and late, attempts that end and go on, time."""
    from isocompute.budget import COHORTS, Counts, History, Ledger

    os.fsync = lambda fd: None
    with suppress(ImportError):
        # A tree before ledgers were kept in SQLite has none.
        vars(importlib.import_module("isocompute.budget.ledger.store"))["SYNCHRONOUS"] = "OFF"
    for number in range(500):
        rng, reached, said = random.Random(number), 0, []
        for _ in range(rng.randint(1, 5)):
            begin = rng.choice((0, reached, rng.randint(0, reached)))
            with Ledger.open(Path(f"{number}.ledger"), run_id="run", resumed_from=begin) as opened:
                reached = step = begin
                for _ in range(rng.randint(0, 12)):
                    at = rng.choice((step + 1, step + 1, step + 1, step, rng.randint(0, step)))
                    counts = {
                        c: Counts(rollouts=rng.randint(1, 60), prompt_tokens=rng.randint(0, 90), response_tokens=at)
                        for c in rng.sample(COHORTS, rng.choice((0, 1, 1, 2, 6)))
                    }
                    shares = [rng.randint(1, 3) for _ in range(rng.choice((1, 1, 1, 4)))]
                    opened.charge(at, counts, shares=shares, device_seconds=rng.choice((0.0, 0.1, 7.3)))
                    step, reached = max(step, at), max(reached, at + (len(shares) - 1) * bool(counts))
                if rng.random() < 0.3:
                    opened.end(step)
                    reached = min(reached, step)
                said += [repr(opened.totals), repr(opened.used), repr(opened.lost), opened.device_seconds]
        history = History.read(Path(f"{number}.ledger"))
        lines = [repr(frame.rows()) for frame in (history.table(), history.lost_work())]
        yield f"history {number}", [*said, repr(history.totals()), history.last_step, *lines]


def learner(tree: Path, old: Path) -> Iterator[tuple[str, Any]]:
    """Objectives and gradients of each algorithm on one batch, its second half off-policy, and the weights after it."""
    import polars as pl
    import torch
    from isocompute.learner import Learner, LearnerConfig, RunConfig, with_cohorts
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, max_position_embeddings=32, **sizes)).eval()
    model.save_pretrained("model")
    rng, rows = random.Random(0), []
    for k in range(32):
        prompt, response = ([rng.randrange(2, 16) for _ in range(rng.randint(2, 8))] for _ in range(2))
        with torch.no_grad():
            scores = model(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
        logprobs = [float(scores[len(prompt) + i - 1, token]) for i, token in enumerate(response)]
        rows.append(
            {
                "problem_id": f"p{k // 8}",
                "sample": k % 8,
                "prompt_ids": prompt,
                "response_ids": response,
                "reward": rng.choice((0.0, 0.25, 1.0)),
                "finish_reason": "stop",
                "logprobs": logprobs,
                "weights_version": 0,
            }
        )
    parts = {name: find("learner", f"{name}Config") for name in ("Objective", "KL", "Entropy", "Optimizer")}
    run = RunConfig(run_id="r", rollouts_per_problem=8, problems_per_batch=4, seed=3, evaluate_every=32)
    for name, algorithm in find("learner", "ALGORITHMS").items():
        # Not every bound acts on this batch.
        yield f"{name} is made of", asdict(algorithm)
        for place in ("loss", "reward")[: 1 + (name == "grpo")]:
            config = LearnerConfig(
                learning_rate=5e-2,
                optimizer=parts["Optimizer"](warmup_steps=0),
                kl=parts["KL"](coefficient=0.05, place=place),
                entropy=parts["Entropy"](coefficient=0.02),
                objective=parts["Objective"](algorithm=name, updates_per_batch=4, constant_length=8),
            )
            own = Learner("model", config)
            batch = with_cohorts(pl.DataFrame(rows), config.batch)
            learnt = find("learner", "learn")(learner=own, run=run, step=1, rollouts=batch)
            report = asdict(learnt.update) | {"machine_rate": "measured"}
            yield f"{name}, KL in the {place}", [report, asdict(learnt.advantages)]
            yield f"{name}, KL in the {place}, weights", {w: t.flatten().tolist() for w, t in own.weights()}


def smoke(tree: Path, old: Path) -> Iterator[tuple[str, Any]]:
    """The base model, the problems and two cells of the preset ``smoke``, as the pipeline runs them."""
    import yaml

    params = yaml.safe_load((tree / "params.yaml").read_text())
    preset = params["smoke"]
    rate = {"rule": "sqrt", "learning_rate": 2e-3, "batch_rollouts": 8}
    preset["sweep"] = {"easy": {**preset["sweep"]["easy"], "seeds": [0], "learning_rate": rate}}
    preset["difficulty"]["sets"] = {"easy": preset["difficulty"]["sets"]["easy"]}
    preset |= {"prescribe": {}, "resources": {**preset["resources"], "workers": 1, "keep_policies": "none"}}
    params |= {"preset": "smoke", "problem_sets": ["easy"], "tested_sets": []}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    Path("constraints.txt").write_text((old / "constraints.txt").read_text())
    # The base model of the new tree for both: one that is made here anew has other digits.
    Path("experiments").mkdir()
    Path("experiments", "inputs").symlink_to(ROOT / "experiments" / "inputs")
    preset["base"] = {"kind": "model", "model": "experiments/inputs/smoke/base"}
    for stage in ("inputs", "prepare", "sweep easy"):
        words = [sys.executable, "-m", "experiments", *stage.split()]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{stage} ended with {done.returncode}: {done.stdout[-999:]}{done.stderr[-2999:]}")
    for path in sorted(Path("outputs").rglob("*.parquet")):
        yield str(path), table(path)
    # Evaluations of so few steps do not show every change of an update.
    lines = [line for path in Path("work").rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    for path in Path("work").rglob("run.sqlite"):
        # What trees keep that have no metrics.jsonl.
        with closing(sqlite3.connect(path)) as run:
            lines += [line for (line,) in run.execute("SELECT record FROM records ORDER BY id")]
    steps = [step for step in map(json.loads, lines) if step["kind"] == "step"]
    measured = {"machine_rate": "measured"}
    yield "updates", sorted(repr([s["rollouts"], s["responses"], (s["update"] or {}) | measured]) for s in steps)


PARTS = {part.__name__: part for part in (frontier, forecast, doctor, ledger, learner, smoke)}


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """The first place at which two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return f"{where}: {sorted(one.keys() ^ other.keys())} only in one of them"
        pairs = [(f"{where} / {key}", one[key], other[key]) for key in one]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(f"{where}[{k}]", *both) for k, both in enumerate(zip(one, other, strict=True))]
    else:
        same = one == other or (one != one and other != other)
        return None if same else f"{where}:\n    old {str(one)[:1500]}\n    new {str(other)[:1500]}"
    return next((found for place, a, b in pairs if (found := difference(a, b, place))), None)


def ask(part: str, trees: dict[str, Path], home: Path) -> dict[str, Any]:
    """Answers of both trees to a part, computed at the same time."""
    asked = {}
    for name, tree in trees.items():
        work = home / part / name
        work.mkdir(parents=True)
        (work / "packages").symlink_to(trees["old"] / "packages")
        path = os.pathsep.join(map(str, (tree, *(tree / "packages" / package / "src" for package in PACKAGES))))
        words = [sys.executable, "-P", __file__, "--probe", part, str(tree), str(trees["old"])]
        said = (work / "said").open("w")
        asked[name] = work, subprocess.Popen(words, cwd=work, env={**os.environ, "PYTHONPATH": path}, stderr=said)
    for name, (work, process) in asked.items():
        if process.wait():
            return {"error": f"the {name} tree cannot answer: {(work / 'said').read_text()[-3000:]}"}
    return {name: json.loads((work / "answers.json").read_text()) for name, (work, _) in asked.items()}


def main() -> int:
    """Compare the parts asked for; 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--without", nargs="+", default=[], choices=PARTS)
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as home:
        old = Path(home, "tree")
        old.mkdir()
        archive = subprocess.run(["git", "archive", given.commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(old)], input=archive, check=True)
        for part in [p for p in given.parts or PARTS if p not in given.without]:
            began = time.monotonic()
            found = ask(part, {"old": old, "new": ROOT}, Path(home))
            unlike = found.get("error") or difference(found["old"], found["new"])
            failed += unlike is not None
            skipped = "".join(f", {path} skipped" for path in found.get("old", {}).pop("skipped", []))
            said = unlike or f"equal, {len(found['old'])} answers{skipped}"
            print(f"{part}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--probe"]:
        answers = dict(PARTS[sys.argv[2]](Path(sys.argv[3]), Path(sys.argv[4])))
        Path("answers.json").write_text(json.dumps(answers))
    else:
        sys.exit(main())
