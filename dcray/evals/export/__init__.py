"""A run as a checkpoint that other tools read."""
