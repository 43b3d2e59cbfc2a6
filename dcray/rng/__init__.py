"""Random numbers keyed by row, mask or dropout layer; no generator has a state to be advanced."""
