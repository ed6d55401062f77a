"""The loss and its parts as functions of tensors: the public address of what ``objective`` has of them."""

from .objective.critic import value_loss
from .objective.importance import TIS, importance_weights
from .objective.kl import KL_ESTIMATORS, kl_k1, kl_k2, kl_k3
from .objective.loss import ObjectiveInputs, loss_metrics, objective
from .objective.surrogates import SURROGATES, Policies, Surrogate

__all__ = [
    "KL_ESTIMATORS",
    "SURROGATES",
    "TIS",
    "ObjectiveInputs",
    "Policies",
    "Surrogate",
    "importance_weights",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "loss_metrics",
    "objective",
    "value_loss",
]
