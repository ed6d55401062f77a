"""The needs of nox sessions: an environment, a release that agrees with itself, a picture of the MLflow UI."""
