"""The rules of the audit, and the checks that need more than one event and a session's state.

These checks concern drops, ended sessions, connections, wills, waiting messages and checkpoints.
"""
