"""From a table of rollouts to tensors: what is learnt from, in micro-batches, balanced over ranks."""
