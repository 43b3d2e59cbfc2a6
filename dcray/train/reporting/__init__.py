"""Report on a run: its curve, its progress, its clock."""
