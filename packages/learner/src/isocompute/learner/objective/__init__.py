"""The objective as pure functions: advantages of rewards, and the loss of tokens; no model, no files, no processes."""
