"""Time a step of training: beside TRL, with groups that teach nothing, in arithmetic, in tokens and over time."""
