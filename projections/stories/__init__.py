"""The histories of messages: what the log records of a message and of its copy for each session.

``StoryBuilder`` assembles them from records.
"""
