"""How the learning rate of a cell is found: pure functions from the scores of pilots to rates."""
