"""Turns a table of rollouts into tensors: selects responses, forms micro-batches, balances them over ranks."""
