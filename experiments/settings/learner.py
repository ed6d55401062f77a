"""Settings of the learner that a sweep gives, and the ``LearnerConfig`` of one cell made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isocompute.learner import LearnerConfig
from isocompute.learner.config import ObjectiveConfig
from isocompute.learner.recipes import RECIPES, with_recipe
from isocompute.rollout import Sampling
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, core_schema

from .strict import SettingError

ADAPTER = TypeAdapter(LearnerConfig)


class LearnerSettings:
    """Marks the settings of the learner that a sweep gives: those of ``LearnerConfig`` but two, all optional.

    They are checked as a ``LearnerConfig`` is. What is left out is the recipe's, where ``recipe`` names one, else the
    learner's default.
    """

    ELSEWHERE: Mapping[str, str] = {
        "learning_rate": "a pilot finds it, or it is declared; see learning_rate of the sweep",
        "temperature": "it is the sampler's; see sampling.temperature",
    }
    """Settings of the learner that a sweep does not give, and where they come from."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A mapping whose values a ``LearnerConfig`` takes."""
        return core_schema.no_info_wrap_validator_function(self._checked, handler.generate_schema(LearnerConfig))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema of ``LearnerConfig`` without what is given elsewhere, and with ``recipe``."""
        shown = dict(handler.resolve_ref_schema(handler(schema)))
        own = {name: setting for name, setting in shown["properties"].items() if name not in self.ELSEWHERE}
        description = "A recipe, whose settings apply where none is given here."
        recipe = {"type": "string", "enum": sorted(RECIPES), "description": description}
        shown["properties"] = {"recipe": recipe, **own}
        del shown["required"]
        return shown

    def _checked(self, given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(given, Mapping):
            return validate(given)
        for name, advice in self.ELSEWHERE.items():
            if name in given:
                raise SettingError("", f"has no setting {name!r}: {advice}")
        settings = with_recipe(given)
        # A cell has a learning rate and a longest response of its own; any that pass will do here.
        validate({"learning_rate": 1.0, **_with_tuples(_completed(settings, longest=1))})
        return settings


def learner_config(settings: Mapping[str, Any], sampling: Sampling, *, learning_rate: float) -> LearnerConfig:
    """The learner's settings of one cell.

    Args:
        sampling: Whose longest response is ``objective.constant_length`` where that is needed and not given.
    """
    completed = _completed(settings, longest=sampling.max_new_tokens)
    given = {**completed, "learning_rate": learning_rate, "temperature": sampling.temperature}
    return ADAPTER.validate_python(given)


def objective_of(settings: Mapping[str, Any]) -> ObjectiveConfig:
    """The objective that a sweep's settings of the learner name, with nothing left to the algorithm."""
    return learner_config(settings, Sampling(), learning_rate=1.0).objective.resolved


def _completed(settings: Mapping[str, Any], *, longest: int) -> dict[str, Any]:
    """Settings with the constant length of the objective, where it is needed and not given."""
    completed, objective = dict(settings), settings.get("objective", {})
    if isinstance(objective, Mapping) and _is_constant(objective):
        completed["objective"] = {"constant_length": longest, **objective}
    return completed


def _with_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose lists are tuples, which JSON does not have."""
    return {
        name: _with_tuples(value) if isinstance(value, Mapping) else tuple(value) if isinstance(value, list) else value
        for name, value in settings.items()
    }


def _is_constant(objective: Mapping[str, Any]) -> bool:
    """Whether tokens are summed up and divided by a constant; False where these are no settings of an objective."""
    try:
        return replace(ObjectiveConfig(**objective), constant_length=1).resolved.aggregation == "constant"
    except (TypeError, ValueError):
        return False
