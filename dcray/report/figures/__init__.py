"""Figures of a study, in one style."""
