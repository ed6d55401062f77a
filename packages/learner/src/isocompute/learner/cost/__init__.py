"""The FLOPs of an update, and the fraction of the machine's rate that it reaches."""
