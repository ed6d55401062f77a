"""Sources of problems: reasoning-gym tasks, Hugging Face datasets, the user's own files."""
