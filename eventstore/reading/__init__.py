"""Reads a log without its broker: its location, its records in order, points in it.

::

    async with contextlib.AsyncExitStack() as stack:
        location = await open_directory(stack, path, None, note=print, server_log=print)
        client = await location.connect(stack)
        source = await location.open(client, location.named)
        async for record in source.records(source.begin, source.last):
            ...
"""
