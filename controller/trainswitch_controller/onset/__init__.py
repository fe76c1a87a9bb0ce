"""Where a trouble began: when each signal of a run left its band before an alert, and who is suspected.

``signals.yml`` says which signals those are; ``signals.py`` reads it, ``evidence.py`` asks Prometheus as
often as ``fetching.py`` lets it, ``departures.py`` and ``suspects.py`` judge (pure functions), and
``analyst.py`` does it all beside the webhook. ``incidents.py`` keeps what was found in the journal;
``views.py``, ``routes.py`` and ``exported.py`` show it.
"""
