"""One optimizer step: its checks, its passes through the model, its gradients and its state."""
