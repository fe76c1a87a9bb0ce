"""Statistics over steps: what PromQL, which sees scrapes, cannot compute."""
