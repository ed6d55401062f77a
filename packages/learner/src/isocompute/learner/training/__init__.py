"""The training loop of a run: which problems, in which order, and what is learnt from them."""
