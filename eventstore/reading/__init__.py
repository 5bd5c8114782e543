"""A log without its broker: where it is, its records, points in it, its index; copies of it.

::

    async with contextlib.AsyncExitStack() as stack:
        location = await open_directory(stack, path, None, note=print, server_log=print)
        client = await location.connect(stack)
        source = await location.open(client, location.named)
        async for record in source.records(source.begin, source.last):
            ...

The index consists of files beside the log and is built from the log alone. A reader uses only the
parts of it that the links of the log's records confirm.
"""
