"""``foldmq log verify``: checks that records are complete, in order, intact and readable."""

import asyncio
import sys
from dataclasses import dataclass

from cli.common import progress, text
from cli.logsource import SourceFlags, open_source
from projections.verification import LogVerifier, verify_log

_MOST_PROBLEMS = 100


@dataclass(slots=True)
class _Problems:
    """Prints problems as they are found."""

    count: int = 0

    def __call__(self, sequence: int, what: str) -> None:
        self.count += 1
        if self.count <= _MOST_PROBLEMS:
            sys.stdout.write(f"record {sequence} {what}\n")
        elif self.count == _MOST_PROBLEMS + 1:
            sys.stdout.write("further problems are only counted\n")


def run_verify_log(flags: SourceFlags, *, as_json: bool = False) -> bool:
    """Check the log, print problems and a summary; return whether it is intact."""
    return asyncio.run(_run(flags, as_json=as_json))


async def _run(flags: SourceFlags, *, as_json: bool) -> bool:
    problems: list[dict[str, object]] = []
    printed = _Problems()

    def report(sequence: int, what: str) -> None:
        if not as_json:
            printed(sequence, what)
        elif len(problems) < _MOST_PROBLEMS:
            problems.append({"record": sequence, "what": what})
            printed.count += 1
        else:
            printed.count += 1

    async with open_source(flags) as source:
        verifier = await verify_log(source, report, progress)
        where = source.where
        if source.cut is not None and not as_json:
            sys.stdout.write(source.beginning() + "\n")
    if as_json:
        times = {
            key: None if value is None else text.iso(value)
            for key, value in (("from", verifier.first_ms), ("to", verifier.last_ms))
        }
        found = {"records": verifier.records, "entries": verifier.entries, **times}
        found["first_record"] = source.begin
        rest = {"void_parts": verifier.void, "problems": printed.count, "listed": problems}
        sys.stdout.write(text.json_line({**found, **rest}) + "\n")
    else:
        sys.stdout.write(verification_summary(verifier, printed.count, where) + "\n")
    return not printed.count


def verification_summary(verifier: LogVerifier, problems: int, where: str) -> str:
    """Return the summary line: the records read, and whether the log is intact."""
    read = (
        f"{text.count_of(verifier.records, 'record')}, {verifier.entries:,} "
        f"{'entry' if verifier.entries == 1 else 'entries'}"
    )
    if verifier.first_ms is not None and verifier.last_ms is not None:
        read += f", from {text.clock(verifier.first_ms)} to {text.clock(verifier.last_ms)}"
    if verifier.void:
        read += f"; {text.count_of(verifier.void, 'part')} of turns that were not completed"
    if problems:
        return f"damaged: {text.count_of(problems, 'problem')} in the log of {where}; read {read}"
    return f"intact: {read}"
