"""How noisy the policy gradient is at a model, before anything is trained, within and between problems."""
