"""What an update costs: memory before it is taken, and the share of the machine's rate that it reaches."""
