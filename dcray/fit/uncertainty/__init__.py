"""Doubts about a figure: intervals, nulls, pairs on equal seeds, flags."""
