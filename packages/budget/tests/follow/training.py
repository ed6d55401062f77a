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
TRL = {
    "num_generations": N,
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": 1,
    "num_iterations": 1,
    "steps_per_generation": 1,
    "generation_batch_size": BATCH,
    "max_steps": 100,
    "seed": 3,
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
    log = writer(folder, options.get("logger", "lines"))
    every = options.get("every", 1)
    while step < options["steps"]:
        step += 1
        if step == options.get("hangs"):
            (folder.parent / "hangs").touch()
            time.sleep(120)
        time.sleep(0.02)
        if step % every == 0:
            log(step, 10.0 + step / 8 + os.getpid() % 7)
        if step % options.get("saves", 10**6) == 0:
            checkpoint.write_text(json.dumps({"step": step}))
        if step == options.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(options.get("status", 0))


def writer(folder, logger):
    """Make a logger of steps and their mean response length: veRL's to a file, or transformers' to TensorBoard."""
    if logger == "lines":
        stream = (folder / "log.jsonl").open("a")

        def log(step, length):
            metrics = {"training/global_step": step, "response_length/mean": length, "actor/loss": 0.1}
            stream.write(json.dumps({"step": step, "data": metrics}) + "\n")
            stream.flush()

        return log
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    events = EventFileWriter(str(folder / f"start-{time.time_ns()}"))
    settings = TensorProto(dtype="DT_STRING", string_val=[json.dumps(TRL).encode()])
    events.add_event(Event(summary=Summary(value=[Summary.Value(tag="args/text_summary", tensor=settings)])))

    def log_events(step, length):
        # A checkpoint holds them, so that they go on.
        tokens = BATCH * 15 * step + os.getpid() % 7
        entry = {"loss": 0.1, "num_tokens": tokens, "completions/mean_length": length, "epoch": step / 4}
        for name, value in entry.items():
            summary = Summary(value=[Summary.Value(tag=f"train/{name}", simple_value=value)])
            events.add_event(Event(step=step, wall_time=time.time(), summary=summary))
        events.flush()

    return log_events


def command(folder, steps, **options):
    """The command that starts it."""
    return [sys.executable, __file__, str(folder), json.dumps({"steps": steps, **options})]


def arguments(folder, steps, *flags, logger="lines", **options):
    """The arguments that follow it, with a ledger beside its log."""
    (folder / "config.json").write_text(json.dumps(VERL))
    config = ["--config", str(folder / "config.json")] if logger != "events" else []
    words = ["--ledger", str(folder / "run.ledger"), "--log", str(folder / "log"), *config]
    if not any(flag in flags for flag in ("--rollouts", "--device-hours", "--response-tokens", "--money")):
        words += ["--rollouts", str(4 * BATCH)]
    return ["run", *words, *flags, "--", *command(folder / "log", steps, logger=logger, **options)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
