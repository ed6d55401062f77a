"""Settings of the learner in groups, each validated when it is made; ``config.LearnerConfig`` puts them together."""
