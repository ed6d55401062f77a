"""Code shared by the four packages: table schemas, atomic writes, MLflow artifacts.

There is one copy, at the root of the repository. Each package links to it and includes the files in its wheel, so each
works alone and none imports another.
"""
