"""The log in JetStream, and the data that is kept beside it.

``Journal`` commits in groups and releases the output that waits for the disk. ``EventLog`` is the
stream of one node, ``MessageStore`` the published messages by position, ``KeyedStore`` the stream
of the projections, ``Watermark`` a note of the last record of the log. ``salvage`` copies the
intact part of a damaged log. The modules are loaded lazily: a tool that reads the log needs few.
"""
