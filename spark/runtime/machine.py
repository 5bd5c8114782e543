"""The available memory and cores of this machine, or of the container of this process."""

import os
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")


def available_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes of memory that processes can still get; None if that is unknown.

    These are the estimate of Linux, or what the control groups (version 2) of this process have
    left, whichever is less. ``root`` has ``proc`` and ``sys``.
    """
    limits = [_of_system(root), *_of_groups(root)]
    sizes = [limit for limit in limits if limit is not None]
    return max(0, min(sizes)) if sizes else None


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _of_system(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_groups(root: Path) -> list[int | None]:
    """Return the remaining memory of each control group of this process that has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return []
    top = root / "sys/fs/cgroup"
    group = top / own.lstrip("/")
    above = [parent for parent in group.parents if parent.is_relative_to(top)]
    return [_of_group(parent) for parent in (group, *above)]


def _of_group(group: Path) -> int | None:
    """Return the limit of a group less what it uses, without files that can be read again."""
    with suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())  # "max": there is none
        used = int((group / "memory.current").read_text())
        for line in (group / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                used -= int(value)
        return limit - used
    return None
