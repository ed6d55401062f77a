"""Studies with the pipeline and beside it: the panel, its tiny base models, the bandit. Nothing else imports them."""
