"""A study as a value: its file, its spaces and axes, each cell's specification. No side effects."""
