"""The losses of two runs token by token."""
