"""The search: what to run next, and running it on Ray Tune."""
