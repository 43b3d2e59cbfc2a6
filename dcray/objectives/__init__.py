"""Objectives: one file each; what a loss is and what val_loss means."""
