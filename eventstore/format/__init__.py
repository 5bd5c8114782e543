"""The format of the log: positions, events, records and their sizes.

``Position`` names an entry of the log. An event is a slotted dataclass; a ``Record`` contains many
events in one JetStream message, checksummed and chained to the record before it.
"""
