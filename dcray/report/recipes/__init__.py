"""Recipes side by side: what their cells cost, and where each stands."""
