"""A stand-in for a trainer: it answers by chance, charges a ledger, and writes checkpoints and a log as TRL does."""

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from isocompute.budget import Counts, Ledger


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    texts = ("base_model", "train", "validation", "ledger", "output_dir", "pause", "fault", "fails_at", "kill_after")
    for name in texts:
        parser.add_argument(f"--{name}", default="")
    whole = ("seed", "eval_steps", "num_generations_eval", "num_generations", "max_steps", "num_iterations")
    whole += ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    for name in whole:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--learning_rate", type=float)
    return parser.parse_args()


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that is whole."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    whole = [path for path in found if (path / "trainer_state.json").exists()]
    return whole[-1] if whole else None


def evaluation(step: int, skill: float, args: argparse.Namespace, ledger: Ledger | None) -> dict[str, float]:
    """Answer the validation problems."""
    questions = len(Path(args.validation).read_text().splitlines())
    drawn = random.Random(f"eval {args.seed} {step} {skill}")
    answers = questions * args.num_generations_eval
    right = sum(drawn.random() < skill for _ in range(answers))
    if ledger is not None:
        ledger.charge(step, {"eval": Counts(rollouts=answers, prompt_tokens=5 * answers, response_tokens=3 * answers)})
    return {"step": step, "eval_reward": right / answers, "eval_rewards/right/mean": right / answers}


def main() -> None:
    args = arguments()
    if args.fault == "fails" or args.fails_at == str(args.seed):
        print("the first line\nthe second line\nthe third line", flush=True)
        sys.exit("ValueError: the reward is not defined")
    folder, checkpoint = Path(args.output_dir), newest(Path(args.output_dir))
    state = json.loads((checkpoint / "trainer_state.json").read_text()) if checkpoint else {}
    begun, skill = state.get("global_step", 0), state.get("skill", 0.2)
    log = state.get("log_history", [])
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
    steps = args.max_steps - (args.fault == "ends early")
    ledger = None
    if args.fault != "no ledger":
        ledger = Ledger.open(args.ledger, run_id="stand-in", resumed_from=begun)
    if not begun and args.fault not in ("no evaluations", "no first evaluation"):
        log.append(evaluation(0, skill, args, ledger))
    for step in range(begun + 1, steps + 1):
        time.sleep(float(args.pause or 0))
        drawn = random.Random(f"train {args.seed} {step} {skill}")
        lengths = [drawn.randint(1, 5) for _ in range(batch)]
        skill = min(0.9, skill + drawn.random() / 20)
        if ledger is not None:
            counts = Counts(rollouts=batch, prompt_tokens=5 * batch, response_tokens=sum(lengths))
            ledger.charge(step, {"trained": counts}, device_seconds=0.25)
        shown = {"step": step, "epoch": step / args.max_steps, "loss": 0.0, "reward": skill}
        log.append({**shown, "completions/mean_length": sum(lengths) / batch})
        if args.kill_after and ledger is not None and not state and step == int(args.kill_after):
            os.kill(os.getpid(), signal.SIGKILL)
        if step % args.eval_steps:
            continue
        if args.fault != "no evaluations":
            log.append(evaluation(step, skill, args, ledger))
        place = folder / f"checkpoint-{step}"
        place.mkdir(parents=True, exist_ok=True)
        learnt = args.num_generations * 2 if args.fault == "other settings" else args.num_generations
        whole = {
            "global_step": step,
            "max_steps": args.max_steps,
            "skill": skill,
            "num_generations": learnt,
            "train_batch_size": args.per_device_train_batch_size,
            "log_history": log,
        }
        if args.fault == "other settings":
            whole["train_batch_size"] *= 2
        aside = place / "writing"
        aside.write_text(json.dumps(whole))
        aside.rename(place / "trainer_state.json")
    if ledger is not None:
        ledger.close()


if __name__ == "__main__":
    main()
