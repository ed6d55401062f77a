"""Errors a user can act on."""


class RolloutError(ValueError):
    """Something asked of the package cannot be done; the message says what and what would be right."""
