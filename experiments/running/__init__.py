"""Run cells: their identity, the workers that train them, and what is stored of them."""
