"""The paper's transformer."""
