"""``foldmq top``: a running broker at a glance, on a terminal or as text.

- ``rates``, ``history``: what happened between two answers of the broker, and before; pure.
- ``figures``, ``summary``, ``columns``, ``charts``: the same as text, for whatever width; pure.
- ``link``, ``questions``: the connection to the broker, made anew when it was lost, and what
  is asked over it.
- ``once``: one frame as text or JSON.
- ``app``, ``overview``, ``pages``, ``widgets``: the full-screen view.
"""
