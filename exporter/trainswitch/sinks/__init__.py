"""Files for those who look at a run without Prometheus: CSV and TensorBoard, written by the aggregator."""
