"""Plans for a budget before it is spent: its splits, and what they cost in time, memory and money."""
