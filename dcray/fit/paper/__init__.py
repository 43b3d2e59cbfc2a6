"""The paper's grids and figures, and ours beside them."""
