"""What is written to disk, whole or not at all: checkpoints, and the trained policy."""
