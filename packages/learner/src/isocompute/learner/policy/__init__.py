"""The causal language model of the learner: loading, packed or padded passes, chunked log-probabilities, export."""
