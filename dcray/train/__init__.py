"""The training step, the loop around it, checkpoints, and a trial on Ray Train."""
