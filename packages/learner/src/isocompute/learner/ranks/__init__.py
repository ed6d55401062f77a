"""Several learners that take every update together, as Ray actors."""
