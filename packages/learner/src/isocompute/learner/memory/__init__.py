"""Estimates the memory of an update before anything is loaded."""
