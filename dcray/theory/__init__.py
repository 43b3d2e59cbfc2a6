"""The appendix, checked numerically."""
