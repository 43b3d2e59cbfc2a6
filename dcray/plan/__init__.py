"""The cost of a study before and while it runs: estimates, forecasts, history, suggestions."""
