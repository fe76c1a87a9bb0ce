"""What changes a run: the control protocol, the actions and the checkpoints."""
