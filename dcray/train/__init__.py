"""The training step, and all that surrounds it."""
