"""vLLM, in this process (``sampler``) or in a Ray actor (``remote``); no other module imports it."""
