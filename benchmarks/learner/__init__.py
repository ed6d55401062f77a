"""What a step of training costs: beside TRL, with groups that teach nothing, in arithmetic, in tokens and over time."""
