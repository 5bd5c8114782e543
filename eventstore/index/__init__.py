"""The index of a log: the records that concern each session, topic or message.

It is kept in files beside the log and built from the log alone. A reader uses only the parts of it
that the links of the log's records confirm.
"""
