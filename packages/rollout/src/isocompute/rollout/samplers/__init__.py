"""Samplers answer problems: vLLM, transformers and servers of OpenAI's protocol behind one interface."""
