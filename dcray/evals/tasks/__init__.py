"""Runs as models of lm-eval: tasks, likelihoods, results."""
