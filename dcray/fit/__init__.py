"""The fits of scaling laws, and the worth of a recipe by them."""
