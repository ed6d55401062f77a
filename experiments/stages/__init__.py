"""The stages of the pipeline: each reads files, does its part, writes files, and logs them to MLflow.

A stage is a module with a function ``run``; it depends on the code that its ``run`` reaches.
"""

STAGES = ("inputs", "prepare", "plan")
"""Stages for the whole preset."""
SET_STAGES = ("sweep", "frontier", "prescribe")
"""Stages for one problem set."""
