"""Scaling laws, one file each: a subclass of `Law` that the file names `PLUGIN`."""

from dcray.laws._faults import faults
from dcray.laws._law import Law, Points

__all__ = ["Law", "Points", "faults"]
