"""A script that trains a tiny model with TRL, logs to TensorBoard and resumes: killed before one step, slow in another.

python trl_program.py FOLDER STEP_AT_WHICH_IT_IS_KILLED STEP_THAT_TAKES_LONG
"""

import os
import signal
import sys
import time
from pathlib import Path

from transformers import TrainerCallback

sys.path.append(str(Path(__file__).parents[1] / "trainers"))
from reading_logs import settings
from trl_runs import grpo


class Disturbed(TrainerCallback):
    def __init__(self, killed, slow):
        self.killed, self.slow = killed, slow

    def on_step_begin(self, args, state, control, **_):
        if state.global_step + 1 == self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.global_step + 1 == self.slow:
            time.sleep(120)


def main(folder, killed, slow):
    sizes = "num_generations=2 per_device_train_batch_size=4 gradient_accumulation_steps=1 num_iterations=2"
    args = settings(
        f"report_to=[tensorboard] {sizes} logging_steps=1 save_steps=5 max_steps=40 max_completion_length=4"
    )
    trainer = grpo(folder, args, problems=16, callbacks=[Disturbed(killed, slow)])
    generate = trainer._generate_and_score_completions

    def hooked(inputs):
        with (folder.parent / "made.txt").open("a") as stream:
            stream.write(f"{len(inputs)}\n")
        return generate(inputs)

    trainer._generate_and_score_completions = hooked
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
