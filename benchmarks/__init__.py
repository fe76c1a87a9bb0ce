"""Measurements against the bars of docs/architecture.md; each exits with 1 where its bar is missed."""
