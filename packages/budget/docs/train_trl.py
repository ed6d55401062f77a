"""Train the two TRL runs of the README: ``python train_trl.py MODEL``, with trl installed, on CPU.

MODEL is the embedded default's base model (``outputs/base``). Never run by a test: what it wrote lies in ``trl/``.
"""

import random
import shutil
import sys
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = Path(__file__).parent / "trl"


def chain(rng: random.Random) -> str:
    """A sum of three digits, such as ``3+4-2=``."""
    return "".join(f"{rng.choice('+-') if i else ''}{rng.randint(1, 5)}" for i in range(3)) + "="


def right(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """1 where the last result is the chain's."""
    pairs = zip(prompts, completions, strict=True)
    return [float(text.rpartition("=")[2].strip() == str(eval(prompt[:-1]))) for prompt, text in pairs]


def train(model: str, n: int) -> None:
    """120 optimizer steps of 64 completions, evaluated every fourth on 64 problems, four responses each."""
    rng = random.Random(0)
    problems = sorted({chain(rng) for _ in range(400)})
    rng.shuffle(problems)
    out = HERE / f"n{n}"
    config = GRPOConfig(
        output_dir=str(out / "run"),
        per_device_train_batch_size=64,
        num_generations=n,
        num_generations_eval=4,
        per_device_eval_batch_size=64,
        max_steps=120,
        eval_strategy="steps",
        eval_steps=4,
        eval_on_start=True,
        logging_steps=4,
        max_completion_length=16,
        use_cpu=True,
        bf16=False,
        report_to=[],
        seed=n,
        save_strategy="steps",
        save_steps=120,
        learning_rate=5e-4,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=5,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=right,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": problems[64:]}),
        eval_dataset=Dataset.from_dict({"prompt": problems[:64]}),
    )
    trainer.train()
    for name in ("trainer_state.json", "training_args.bin"):
        shutil.copy(out / "run" / "checkpoint-120" / name, out / name)
    shutil.rmtree(out / "run")


if __name__ == "__main__":
    for count in (4, 16):
        train(sys.argv[1], count)
