"""MLflow: the record of every result."""
