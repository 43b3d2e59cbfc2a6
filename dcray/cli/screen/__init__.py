"""Show what commands share on the screen: consoles, the live view, tables."""
