"""Data: evaluations and pass rates read, checked, and grouped into curves with their errors."""
