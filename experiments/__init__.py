"""The composition root: the stages of the pipeline, and the only place that imports all four packages."""
