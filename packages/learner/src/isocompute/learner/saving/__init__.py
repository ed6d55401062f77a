"""Files written whole or not at all: checkpoints, and the trained policy."""
