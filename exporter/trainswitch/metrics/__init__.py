"""From records to samples: catalogue, aggregator, HTTP server and file_sd registration."""
