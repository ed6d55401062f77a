"""Every figure of both papers by one command: what is trained, read and drawn stands in ``NAME.yaml`` beside this."""
