"""Replicas of a sampler in separate Ray actors, behind the interface of one sampler."""
