"""Kills and breaks everything around an intervention, and counts what was lost, doubled or only claimed."""
