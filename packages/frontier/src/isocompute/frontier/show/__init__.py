"""What results look like: figures, and a report on one page."""
