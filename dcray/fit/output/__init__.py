"""The answer of a fit in sentences, as text and as JSON."""
