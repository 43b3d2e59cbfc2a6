"""From documents to rows."""
