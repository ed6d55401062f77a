"""What a budget buys before it is spent: splits of it, sweeps that fit it, and what they cost in time and money.

Names are imported from the modules, so that ``Allocation`` does not load what turns rollouts into money.
"""
