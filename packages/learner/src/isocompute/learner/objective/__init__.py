"""The objective as pure functions: advantages from rewards, and the loss of tokens; no model, files or processes."""
