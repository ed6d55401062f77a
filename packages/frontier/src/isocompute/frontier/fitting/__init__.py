"""What the curves say: fits of one curve with their noise and intervals, and of all curves side by side."""
