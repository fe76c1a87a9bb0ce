"""What it costs a training loop to be watched, by this monitor and by its peers."""
