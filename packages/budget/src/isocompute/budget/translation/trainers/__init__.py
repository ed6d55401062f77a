"""The trainers: one module each, with what a run is called in its settings."""
