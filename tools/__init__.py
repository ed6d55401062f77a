"""What the sessions of nox need: an environment, a release that agrees with itself, a picture of the MLflow UI."""
