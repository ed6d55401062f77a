"""A run's configuration, asked by name: what is missing is an error that says how to give it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from ...errors import FrontierError

MEANING = {
    "adv_estimator": "veRL's algorithm.adv_estimator; remax samples one more response to each prompt",
    "batch_rollouts": "rollouts in a training batch",
    "dynamic_filtering": "whether prompts with equal rewards (frac_reward_zero_std) were replaced: true or false",
    "filter_groups": "whether groups with equal rewards (frac_reward_zero_std) were replaced: true or false",
    "gen_batch_size": "prompts generated at once",
    "generation_batch_size": "completions generated at once, over all processes",
    "gradient_accumulation_steps": "micro-batches in an optimizer step",
    "max_epochs": "passes over a batch of rollouts",
    "metric": "name of the success rate among the evaluation's metrics",
    "num_iterations": "times that each completion is trained on",
    "pass_rate_of": "what the logged pass rate is a share of: prompts or responses",
    "per_device_train_batch_size": "completions per process in a micro-batch",
    "ppo_epochs": "passes over a batch of rollouts",
    "ppo_mini_batch_size": "prompts in an optimizer step",
    "problem_set": "what to call the problems evaluated",
    "problems_per_batch": "B_p, prompts in a training batch",
    "questions": "how many validation problems there are",
    "rollouts_per_problem": "n, responses sampled for each prompt",
    "rollouts_per_step": "rollouts generated in each step whose count is not logged",
    "samples": "responses to each validation problem",
    "seed": "the run's seed, or auto to number the runs",
    "step_column": "column that counts the trainer's steps",
    "steps_per_generation": "micro-batches that a generation batch is cut into",
    "train_batch_size": "responses in an optimizer step",
    "vllm_generate_batch_size": "prompts generated at once",
    "world_size": "processes of the trainer, one per GPU",
}
"""Every setting that ``--set`` accepts, and what it means."""


class Settings:
    """The configuration of one run.

    Args:
        where: The run, for messages.
        logged: What its logs say, with dotted keys.
        configured: What a configuration file says, with dotted keys.
        given: What the user says; it takes precedence.

    Attributes:
        notes: Defaults of the framework that were used because its configuration leaves them out.

    Raises:
        FrontierError: A setting is given that no adapter knows.
    """

    def __init__(
        self, where: str, logged: Mapping[str, Any], configured: Mapping[str, Any], given: Mapping[str, str]
    ) -> None:
        self.where = where
        self.notes: list[str] = []
        self._logged, self._configured = _plain(logged), _plain(configured)
        self._given = given
        unknown = [name for name in given if name not in MEANING]
        if unknown:
            raise FrontierError(f"there is no setting {unknown[0]}; there are {', '.join(MEANING)}")

    @property
    def is_configured(self) -> bool:
        """Whether logs or file hold a configuration, so that what it leaves out has the framework's default."""
        # A trainer's state is not a configuration, whatever it repeats of one.
        return any(not key.startswith("trainer_state.") for key in (*self._logged, *self._configured))

    def is_given(self, name: str) -> bool:
        """Whether the user says it."""
        return name in self._given

    def found(self, name: str, *keys: str) -> Any:
        """A value by our name or by one of the framework's keys, or None where nothing says it.

        Raises:
            FrontierError: Logs and configuration file contradict each other.
        """
        if name in self._given:
            return self._given[name]
        for key in keys:
            logged, configured = self._logged.get(key), self._configured.get(key)
            if logged is not None and configured is not None and str(logged) != str(configured):
                raise FrontierError(
                    f"{self.where}: {name} is {logged} in its logs and {configured} in the configuration file; say "
                    f"which with --set {name}=VALUE"
                )
            if logged is not None or configured is not None:
                return configured if logged is None else logged
        return None

    def matching(self, pattern: str) -> dict[str, Any]:
        """Values by the framework's keys that a regular expression matches whole."""
        both = {**self._configured, **self._logged}
        return {key: value for key, value in both.items() if re.fullmatch(pattern, key) and value is not None}

    def unknown(self, name: str, *keys: str) -> FrontierError:
        """The error for a setting that nothing says."""
        known = f"none of {', '.join(keys)} is in its logs or configuration; " if keys else ""
        return FrontierError(
            f"{self.where}: {name} ({MEANING[name]}) is not known: {known}give it with --set {name}=VALUE"
        )

    def optional(self, name: str, *keys: str) -> int | None:
        """A whole number of at least 1, or None where nothing says it.

        Raises:
            FrontierError: The value is not such a number.
        """
        value = self.found(name, *keys)
        if value is None:
            return None
        number = self._number(name, value)
        if number != math.floor(number) or not 1 <= number < 2**53:
            raise FrontierError(f"{self.where}: {name} is {value}; it must be a whole number of at least 1")
        return int(number)

    def whole(self, name: str, *keys: str, default: int | None = None) -> int:
        """A whole number of at least 1.

        Args:
            keys: The framework's.
            default: The framework's own, for a configuration that leaves it out.

        Raises:
            FrontierError: Nothing says it, or the value is not such a number.
        """
        value = self.optional(name, *keys)
        if value is not None:
            return value
        if default is None or not self.is_configured:
            raise self.unknown(name, *keys)
        self.notes.append(f"{name} is not in the configuration: {default}, as by default, is taken")
        return default

    def flag(self, name: str, *keys: str) -> bool:
        """Whether something is switched on; a configuration that leaves it out leaves it off.

        Raises:
            FrontierError: It is neither true nor false, or there is no configuration at all.
        """
        value = self.found(name, *keys)
        if value is None and not self.is_configured:
            raise self.unknown(name, *keys)
        text = str(value).lower()
        if text not in {"true", "false", "none", "1", "0"}:
            raise FrontierError(f"{self.where}: {name} is {value!r}; it must be true or false")
        return text in {"true", "1"}

    def text(self, name: str, *keys: str, default: str = "") -> str:
        """A text, or the default where nothing says it.

        Args:
            keys: The framework's.
            default: What to return where nothing says it.

        Raises:
            FrontierError: It is one of the framework's settings, and there is no configuration at all.
        """
        value = self.found(name, *keys)
        if value is None and keys and not self.is_configured:
            raise self.unknown(name, *keys)
        return default if value is None else str(value)

    def common(self, *, n: int, problems: int, seed_keys: tuple[str, ...]) -> dict[str, Any]:
        """The columns of ``evals`` that are the same in every row of a run.

        Args:
            n: Rollouts per problem.
            problems: Problems per batch.
            seed_keys: The framework's names of the seed.

        Raises:
            FrontierError: The seed is not a whole number, or the number of questions is not known.
        """
        known = {**self._configured, **self._logged}
        identity = repr((self.where, sorted(known.items(), key=str), sorted(self._given.items())))
        seed = self.found("seed", *seed_keys)
        number = 0.0 if seed is None or seed == "auto" else self._number("seed", seed)
        if number != math.floor(number) or not abs(number) < 2**53:
            raise FrontierError(f"{self.where}: seed is {seed}; it must be a whole number, or auto")
        return {
            "run_id": sha256(identity.encode()).hexdigest()[:16],
            "rollouts_per_problem": n,
            "problems_per_batch": problems,
            "seed": int(number),
            "split": "validation",
            "questions": self.whole("questions"),
        }

    def _number(self, name: str, value: Any) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise FrontierError(f"{self.where}: {name} is {value!r}, which is not a finite number")
        return number


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys, and None for what MLflow keeps as text."""
    return {key.replace("/", "."): None if value in ("None", "null", "") else value for key, value in found.items()}
