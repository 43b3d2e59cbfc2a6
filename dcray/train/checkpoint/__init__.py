"""Checkpoints: which are kept, how they are written, their metadata, weights alone."""
