"""Explains what happened to a message: its history in all logs, as text and as JSON.

``find_histories`` reads it. If there is none, ``explain_no_message`` returns possible reasons.
"""
