"""The record of every result in MLflow."""
