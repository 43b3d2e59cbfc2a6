"""The tables of an analysis, on the page, in tables.md and on the screen."""
