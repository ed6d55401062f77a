"""One optimizer step: what is checked, what passes through the model, what is left out, what is kept."""
