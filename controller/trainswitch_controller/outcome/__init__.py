"""What an intervention whose alert has resolved has cost: loss against its forecast, and GPU-seconds.

``forecast.py`` is a pure function, and ``measuring.py`` asks Prometheus in a thread of its own.
``records.py`` keeps what it found in the journal; ``exported.py`` exports it.
"""
