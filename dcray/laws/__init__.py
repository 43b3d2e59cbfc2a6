"""Scaling laws: one file each."""
