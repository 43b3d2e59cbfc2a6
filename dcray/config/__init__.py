"""Configurations as frozen, validated values, and how people write them."""
