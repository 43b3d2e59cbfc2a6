"""Tables of losses: columns are found, rows are checked."""
