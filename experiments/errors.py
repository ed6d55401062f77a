"""Errors a user can act on."""


class ExperimentError(ValueError):
    """A stage cannot do what it was asked; the message says what was wrong and what would be right."""
