"""Trainers: write an allocation as their settings, read their settings, and turn their logs into ``evals`` tables.

``convert`` writes the batch, micro-batch and step keys with which a trainer generates exactly B_p · n · M rollouts and
takes M optimizer steps. ``read`` interprets such settings, and reports what they leave open and where they contradict
each other. ``ingest`` counts from logs what was generated. The keys and metrics were read in each trainer's own source,
and each trainer's module holds all that is known about it.
"""
