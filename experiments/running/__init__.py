"""Run cells: their identity, the workers that train them, and what is kept of them."""
