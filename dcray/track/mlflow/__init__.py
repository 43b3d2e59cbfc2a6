"""Access to MLflow: address, connection, experiment, the one writer, waiting for a server."""
