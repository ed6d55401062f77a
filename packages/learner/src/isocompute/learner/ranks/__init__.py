"""Several learners, as Ray actors, that take every update together."""
