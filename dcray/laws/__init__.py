"""Scaling laws: one file each, and what a law of your own starts from."""

from dcray.laws._faults import faults
from dcray.laws._law import Law, Points

__all__ = ["Law", "Points", "faults"]
