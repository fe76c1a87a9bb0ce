"""What rule evaluation costs as the number of ranks grows: a real Prometheus, and synthetic ranks."""
