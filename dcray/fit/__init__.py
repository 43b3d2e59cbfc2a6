"""Fitting laws, and what a recipe is worth."""
