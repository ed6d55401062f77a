"""Where problems come from: reasoning-gym tasks, Hugging Face datasets, the user's own files."""
