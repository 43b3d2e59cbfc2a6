"""Scaling laws, one file each, and the base class of a law of your own."""

from dcray.laws._faults import faults
from dcray.laws._law import Law, Points

__all__ = ["Law", "Points", "faults"]
