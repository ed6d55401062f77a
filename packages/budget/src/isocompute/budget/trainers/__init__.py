"""Trainers: an allocation as their settings, their settings read, and their logs as ``evals`` tables.

``convert`` writes the batch, micro-batch and step keys with which a trainer generates exactly B_p · n · M rollouts and
takes M optimizer steps; ``read`` understands such settings, and says what they leave open and where they contradict
each other; ``ingest`` counts from logs what was generated. The keys and metrics were read in each trainer's own source;
all that is known of a trainer stands in its module.
"""
