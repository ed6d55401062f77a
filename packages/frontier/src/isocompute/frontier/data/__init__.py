"""Data: reading and checking evaluations and pass rates, and grouping them into curves with errors."""
