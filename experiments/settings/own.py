"""A preset of one's own, as short as may be, with values for a base model of its size; and what does not suit one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isocompute.rollout import LocalSource
from isocompute.rollout.contract.documents import parsed
from isocompute.rollout.contract.settings import made_of
from isocompute.rollout.problems.loading import candidates
from isocompute.rollout.samplers.registry import CHEAPER_BELOW, CHEAPER_UP_TO
from isocompute.rollout.samplers.weights import stored_parameters
from isocompute.rollout.scoring.rules import rule

from ..errors import ExperimentError
from .preset import Preset
from .sections import DeclaredRate, checked_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Values for base models of a size.

    Attributes:
        preset: Of params.yaml, whose values they are.
        of: Parameters of the models that these are of.
        longest: Tokens of a prompt and its response together.
        rate: Learning rate at a batch of ``anchor`` rollouts, which goes with the root of the batch.
        batch: B_p, problems per batch.
        rollouts: The budget of a cell.
    """

    preset: str
    of: float
    longest: int
    rate: float
    anchor: int
    batch: int
    rollouts: int


TINY = Size(preset="tiny", of=109e3, longest=CHEAPER_UP_TO, rate=1.25e-4, anchor=64, batch=8, rollouts=8192)
LARGE = Size(preset="gpu", of=7.6e9, longest=1536, rate=1e-6, anchor=1024, batch=32, rollouts=32768)
LEAST_LARGE = 1e9
"""Parameters from which a base model has the values of ``LARGE``; below ``CHEAPER_BELOW`` it has those of ``TINY``."""
LADDER = "[2.0e-6, 8.0e-6, 3.2e-5, 1.28e-4]"
"""The rates that are searched between the two."""
FAR = 20
"""How many times higher or lower than its size's a rate must be to be remarked on: an adapter's is ten times higher."""


def size_of(parameters: int | None) -> Size | None:
    """The values of a size; None between the two that were measured. One that is not known is taken for large."""
    if parameters is None or parameters >= LEAST_LARGE:
        return LARGE
    return TINY if parameters < CHEAPER_BELOW else None


def context_of(model: str) -> int | None:
    """The most positions of a base model in a folder, by its config.json."""
    with suppress(OSError, ValueError, AttributeError):
        config: Any = json.loads((Path(model) / "config.json").read_text("utf-8"))
        found = (config.get("text_config") or config).get("max_position_embeddings")
        return found if isinstance(found, int) and found > 1 else None
    return None


def _millions(parameters: float) -> str:
    return f"{parameters / 1e9:,.3g} billion" if parameters >= 1e9 else f"{parameters / 1e6:,.3g} million"


def _lengths(longest: int) -> tuple[int, int]:
    """Tokens of a response and of a prompt that are as long together."""
    prompt = max(1, longest // 3)
    return max(1, longest - prompt), prompt


SHORT = """\
# Five decisions are yours: 1 to 5. `python -m experiments schema` describes every setting there is.
{name}:
  problems:
    # 1. The problems: a file, its columns, and how many of its {found} are trained on and held out; one in a hundred
    # is kept for those whose own answer is not right.
    - kind: file
      path: {path}
      prompt: {prompt}
      answer: {answer}
      train: {train}
      validation: {validation}
      # 2. What says whether a response is right.
      verifier: {verifier}
  # 3. The base model: a folder, or a name on the hub and its commit.
  base: {{kind: model, model: {model}, revision: {revision}}}
  # The lengths that a response and a prompt may have, in tokens:
  # {longest}.
  sampling: {{temperature: 1.0, max_new_tokens: {new}, max_prompt_tokens: {prompt_tokens}}}
  # auto: by the tokenizer's chat template, where it has one.
  prompting: {{template: auto}}
  # How long a verifier may take for a response.
  scoring: {{seconds: 5.0}}
  # n is chosen by avg@4 on the problems that are held out.
  evaluation: {{samples: 4, metric: avg_at_4}}
  # The base model answers each problem 8 times, and a set has problems whose pass rate is from lowest to highest: here
  # all. Where the interval is narrower there are fewer: lower train and validation with it.
  difficulty:
    samples: 8
    fresh_samples: 8
    seed: 0
    sets:
      {set}: {{lowest: 0.0, highest: 1.0, train: {train}, validation: {validation}}}
  sweep:
    {set}:
      # 4. The budget of a cell, and how often it is evaluated: after a multiple of every n · problems_per_batch.
      rollouts: {rollouts}
      evaluate_every: 1024
      evaluations_per_octave: 2
      # 5. Every n that is compared: a cell for each, and for each seed.
      rollouts_per_problem: [4, 8, 16, 32]
      problems_per_batch: [{batch}]
      seeds: [0]
      # GRPO, by the defaults of the learner where nothing else is said.
      learner: {learner}
      # {why}
      # Other rules, and how a rate is searched: docs/running.md.
      learning_rate: {rate}
  frontier: {{seed: 0}}
  prescribe: {{}}
  # The cells that are trained at a time, and on what: cpu or cuda.
  resources: {{workers: 1, sampler: auto, device: {device}, keep_policies: none}}
"""
MOST_TRAINED, MOST_HELD_OUT = 2000, 300


def short_text(name: str, source: LocalSource, model: str, revision: str, problem_set: str) -> str:
    """A file with one preset that is as short as may be, for one's own problems and a base model of its size.

    Raises:
        ValueError: The problems cannot be read or are too few, the verifier is unknown, or a setting is refused.
    """
    checked_name(name)
    rule(source.verifier)
    keys = [candidate.key for candidate in candidates(source, None)]
    found = len(set(keys))
    # One in a hundred may be dropped, since its own answer is not right.
    usable = found - -(-found // 100)
    validation = min(MOST_HELD_OUT, usable // 5)
    train = min(MOST_TRAINED, usable - validation)
    if not validation:
        raise ExperimentError(
            f"{source.path}: holds {found} different problems; a sweep needs hundreds, and 6 at least"
        )
    parameters, context = stored_parameters(model), context_of(model)
    size = size_of(parameters)
    values = size or LARGE
    longest = min(values.longest, context or values.longest)
    new, prompt = _lengths(longest)
    batch = min(values.batch, 1 << train.bit_length() - 1)
    rate, why = _rate(size, batch, parameters)
    on_gpu = shutil.which("nvidia-smi") is not None
    words = {"path": source.path, "prompt": source.prompt, "answer": source.answer, "verifier": source.verifier}
    text = SHORT.format(
        **{key: json.dumps(value) for key, value in (words | {"model": model, "revision": revision}).items()},
        name=name,
        set=problem_set,
        found=f"{found:,}" + (f" different problems, in {len(keys):,} rows," if found < len(keys) else ""),
        train=train,
        validation=validation,
        batch=batch,
        new=new,
        prompt_tokens=prompt,
        longest=_why_so_long(longest, context),
        rollouts=values.rollouts,
        rate=rate,
        why=why,
        learner="{compute: {precision: bfloat16, gradient_checkpointing: true}}" if on_gpu else "{}",
        device="cuda" if on_gpu else "cpu",
    )
    (written,) = parsed(text).values()
    made_of(Preset, {**written, "name": name}, ExperimentError, name)
    return text


def _why_so_long(longest: int, context: int | None) -> str:
    if longest == context:
        return f"together the {context:,} positions of the base model"
    if longest == CHEAPER_UP_TO:
        return f"{longest} together, up to which so small a model is sampled with transformers, and with vLLM beyond"
    return f"the base model has {context:,} positions" if context else "how many the base model has is not known here"


def _rate(size: Size | None, batch: int, parameters: int | None) -> tuple[str, str]:
    """The settings of a learning rate, and why they are these."""
    if size is None:
        where = f"rollouts_per_problem: 8, problems_per_batch: {batch}, rollouts: 4096, evaluate_every: 1024"
        return f"{{rule: sqrt, learning_rates: {LADDER},\n                      {where}, seeds: [900]}}", (
            f"Searched, since the base model has {_millions(parameters or 0)} parameters, and rates were found for "
            f"{_millions(TINY.of)} and {_millions(LARGE.of)}."
        )
    own = "how many this model has is not known here" if parameters is None else f"this one has {_millions(parameters)}"
    why = f"The rate of preset {size.preset}, for models of {_millions(size.of)} parameters; {own}."
    return f"{{rule: sqrt, learning_rate: {size.rate:.2e}, batch_rollouts: {size.anchor}}}", why


def remarks(preset: Preset) -> Iterator[str]:
    """What of a preset does not suit its base model, and what would."""
    context, longest = context_of(preset.base_place), preset.sampling.max_new_tokens + preset.sampling.max_prompt_tokens
    if context is not None and longest > context:
        new, prompt = _lengths(context)
        yield (
            f"sampling: {longest:,} tokens of a prompt and its response are more than the {context:,} positions of the "
            f"base model: set max_new_tokens to {new} and max_prompt_tokens to {prompt}"
        )
    parameters = stored_parameters(preset.base_place)
    size = size_of(parameters)
    if parameters is None or size is None or preset.trainer is not None:
        return
    for name, sweep in preset.sweep.items():
        declared = sweep.learning_rate
        if not isinstance(declared, DeclaredRate):
            continue
        fits = size.rate * (declared.batch_rollouts / size.anchor) ** 0.5
        if not 1 / FAR < declared.learning_rate / fits < FAR:
            yield (
                f"sweep.{name}.learning_rate: {declared.learning_rate:.3g} at {declared.batch_rollouts:,} rollouts is "
                f"far from the {fits:.2g} of preset {size.preset}, of {_millions(size.of)} parameters "
                f"(this model has {_millions(parameters)}): set learning_rate to {size.rate:.3g} and "
                f"batch_rollouts to {size.anchor:,}, or have it searched (docs/running.md, Learning rates)"
            )
