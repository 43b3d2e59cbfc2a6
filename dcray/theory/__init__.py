"""Numerical checks of the paper's appendix."""
