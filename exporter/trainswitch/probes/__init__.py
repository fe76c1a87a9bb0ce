"""What is measured inside the training loop."""
