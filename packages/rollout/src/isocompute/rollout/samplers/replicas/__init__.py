"""Replicas of a sampler, each in a Ray actor of its own, behind the interface of one."""
