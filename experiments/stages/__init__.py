"""The stages of the pipeline: each reads files, does its part, writes files, and logs them to MLflow.

A stage is a module with a function ``run``; what a stage depends on is what its ``run`` reaches.
"""

STAGES = ("inputs", "prepare", "plan")
"""Stages of the whole preset."""
SET_STAGES = ("sweep", "frontier", "prescribe")
"""Stages of one problem set."""
