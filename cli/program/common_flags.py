"""Flags that commands of several modules have."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonRows = Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")]
JsonMessages = Annotated[bool, typer.Option("--json", help="Print one JSON object per message.")]
Start = Annotated[
    str | None, typer.Option("--from", metavar="POS|TIME", help="Start at this point.")
]
End = Annotated[str | None, typer.Option("--to", metavar="POS|TIME", help="End at this point.")]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="POS|TIME", help="Point in time of the state. [default: now]"),
]
