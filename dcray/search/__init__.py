"""The search: pure decisions about what to run next, and what that will take."""
