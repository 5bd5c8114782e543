"""``foldmq erase --check``: whether a text is left in any file of a broker."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from cli.common import text
from cli.logs.key_files import store_key
from cli.logs.logs import open_logs
from cli.logs.source_flags import SourceFlags
from cli.settings.log_settings import load_log_settings
from eventstore.errors import NoLog, UsageError
from eventstore.reading.text_search import TextSearch

_INCOMPLETE = 74
"""Exit code if nothing was found, but something could not be searched."""
_PARQUET = "cli.spark.parquet_contents"
_PATH = 4096
"""Characters of a path that are shown."""
_NEVER = (
    "never searched: contents that are sealed under a key that exists, the memory of programs, "
    "and what subscribers received"
)


def check(flags: SourceFlags, wanted: str, places: Sequence[str], *, as_json: bool) -> None:
    """Search the files of a broker, and ``places``, for a text; ``-``: a line of standard input.

    Raises typer.Exit(1) if it is there, and NoLog or UsageError.
    """
    if wanted == "-":
        wanted = sys.stdin.readline().rstrip("\r\n")
    settings = load_log_settings(flags.settings, os.environ, flags.config)
    search = TextSearch(wanted, store_key(settings.encryption_key_file), _columns())
    for place in places:
        if "://" in place:
            raise UsageError("--in: buckets cannot be searched: copy them into a directory first")
        if not Path(place).exists():
            raise UsageError(f"--in {place}: does not exist")
    searched = [Path(place) for place in places]
    if settings.data_dir.is_dir():
        searched.insert(0, settings.data_dir)
    elif settings.nats_url is None:
        raise NoLog(f"data directory {settings.data_dir}: does not exist")
    for path in searched:
        search.place(path)
    where = [str(path) for path in searched]
    if settings.nats_url is not None:
        where += asyncio.run(_records(flags, search))
    if as_json:
        sys.stdout.write(text.json_line(_fields(search, where)) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(search, where)))
    if search.hits:
        raise typer.Exit(1)
    if search.skipped:
        raise typer.Exit(_INCOMPLETE)


async def _records(flags: SourceFlags, search: TextSearch) -> list[str]:
    """Search the records of a log whose files are elsewhere; return what was searched."""
    async with open_logs(flags) as logs:
        for source in logs.values():
            async for sequence, data in source.stored(source.begin, source.last):
                search.data(f"{source.stream} record {sequence}", data)
            search.skipped.append((source.where, "of its files only the log's records were read"))
        return [f"{source.stream} on {source.where}" for source in logs.values()]


def _columns() -> Callable[[Path], Iterable[bytes]] | None:
    """Return what reads Parquet files; None: it is not installed."""
    try:
        # By name, as commands are loaded: the packages of Spark depend on this one.
        contents: Callable[[Path], Iterable[bytes]] = import_module(_PARQUET).contents
    except ImportError:
        return None
    return contents


def _lines(search: TextSearch, where: Sequence[str]) -> Iterator[str]:
    files = text.count_of(search.files, "file")
    yield (
        f"searched {files}, {text.size(search.bytes)}, in {len(search.forms)} forms: "
        + ", ".join(text.escaped(place, _PATH) for place in where)
    )
    for hit in search.hits:
        forms = ", ".join(f"{form} ({count:,})" for form, count in hit.forms.items())
        yield f"found: {text.escaped(hit.place, _PATH)}: {forms}"
    for place, why in search.skipped:
        yield f"not searched: {text.escaped(place, _PATH)}: {text.escaped(why)}"
    if not search.hits:
        yield "found nowhere" + (" that was searched" if search.skipped else "")
    yield _NEVER


def _fields(search: TextSearch, where: Sequence[str]) -> dict[str, Any]:
    return {
        "searched": list(where),
        "files": search.files,
        "bytes": search.bytes,
        "found": [{"place": hit.place, "forms": hit.forms} for hit in search.hits],
        "not_searched": [{"place": place, "why": why} for place, why in search.skipped],
    }
