"""A causal language model as the learner sees it: loaded, run packed or padded, scored in chunks, handed over."""
