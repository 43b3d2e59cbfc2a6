"""What a finished run can do: tasks, token by token, and as a checkpoint for others."""
