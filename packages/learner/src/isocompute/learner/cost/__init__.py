"""The arithmetic of an update, and the share of the machine's rate that it reaches."""
