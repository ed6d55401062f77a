"""The parts of the objective, token by token: the public address of ``objective.losses``."""

from .objective.losses import TokenTerms, importance_weights, kl_k3, policy_loss, token_terms

__all__ = ["TokenTerms", "importance_weights", "kl_k3", "policy_loss", "token_terms"]
