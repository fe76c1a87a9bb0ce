"""From the training loop to the aggregator: fixed-size records in a shared-memory ring."""
