"""A program that trains nothing: it logs steps as a trainer does, saves checkpoints and resumes.

It is started with a JSON object; without one, it is a module with the helpers of the tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

N, PROBLEMS = 4, 2
BATCH = N * PROBLEMS
VERL = {
    "data": {"train_batch_size": PROBLEMS},
    "actor_rollout_ref": {"rollout": {"n": N}, "actor": {"ppo_mini_batch_size": PROBLEMS}},
}


def main(folder, options):
    """Log steps of 0.02 seconds, until a step in which it hangs, dies or is done."""
    for name in options.get("ignored", []):
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    folder.mkdir(exist_ok=True)
    (folder.parent / "pid").write_text(str(os.getpid()))
    checkpoint = folder.parent / "checkpoint.json"
    step = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
    if options.get("forks"):
        # Sleeps in the group of this process, and outlives it.
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (folder.parent / "child").write_text(str(child.pid))
    every = options.get("every", 1)
    while step < options["steps"]:
        step += 1
        if step == options.get("hangs"):
            (folder.parent / "hangs").touch()
            time.sleep(120)
        time.sleep(0.02)
        if step % every == 0:
            metrics = {"training/global_step": step, "actor/loss": 0.1}
            metrics["response_length/mean"] = 10.0 + step / 8 + os.getpid() % 7
            with (folder / "log.jsonl").open("a") as stream:
                stream.write(json.dumps({"step": step, "data": metrics}) + "\n")
        if step % options.get("saves", 10**6) == 0:
            checkpoint.write_text(json.dumps({"step": step}))
        if step == options.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(options.get("status", 0))


def command(folder, steps, **options):
    """The command that starts it."""
    return [sys.executable, __file__, str(folder), json.dumps({"steps": steps, **options})]


def arguments(folder, steps, *flags, **options):
    """The arguments that follow it, with a ledger beside its log."""
    (folder / "config.json").write_text(json.dumps(VERL))
    words = ["--ledger", str(folder / "run.ledger"), "--log", str(folder / "log")]
    words += ["--config", str(folder / "config.json")]
    if not any(flag in flags for flag in ("--rollouts", "--device-hours", "--response-tokens", "--money")):
        words += ["--rollouts", str(4 * BATCH)]
    return ["run", *words, *flags, "--", *command(folder / "log", steps, **options)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
