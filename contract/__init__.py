"""What the four packages agree on: tables with schemas, how files are replaced, how MLflow carries both.

The folder stands once, at the root of the repository. Each package links to it and carries the files in its wheel,
so that each stands alone and none imports another.
"""
