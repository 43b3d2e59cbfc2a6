"""Evaluation of finished runs: tasks, losses token by token, and export as a checkpoint."""
