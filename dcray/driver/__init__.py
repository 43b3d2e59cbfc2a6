"""The driver: runs what a study wants on Ray, and writes down what comes of it."""
