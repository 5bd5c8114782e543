"""Helpers of commands: terminal text, tables, units, logging and memory."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.common import interpreter, logging_setup, text
    from cli.common.allowed_hosts import Hosts, is_wildcard
    from cli.common.colour import Style, has_colours, painted
    from cli.common.endpoints import Endpoint, endpoint
    from cli.common.memory import (
        GarbageCollector,
        keep_large_blocks,
        trim_after_peaks,
        tune_collector,
    )
    from cli.common.option_groups import given_flags, with_option_groups
    from cli.common.package_version import version
    from cli.common.progress_bar import progress
    from cli.common.tables import Column, Table, duration_text, idle, time_ago, whole_span
    from cli.common.text import clock, count_of, escaped, name, payload_text, printable
    from cli.common.units import Address, address, seconds, size
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "allowed_hosts": "Hosts is_wildcard",
            "colour": "Style has_colours painted",
            "endpoints": "Endpoint endpoint",
            "interpreter": "interpreter",
            "logging_setup": "logging_setup",
            "memory": "GarbageCollector keep_large_blocks trim_after_peaks tune_collector",
            "option_groups": "given_flags with_option_groups",
            "package_version": "version",
            "progress_bar": "progress",
            "tables": "Column Table time_ago idle duration_text whole_span",
            "text": "clock count_of escaped name payload_text printable text",
            "units": "Address address seconds size",
        },
    )

__all__ = [
    "Address",
    "Column",
    "Endpoint",
    "GarbageCollector",
    "Hosts",
    "Style",
    "Table",
    "address",
    "clock",
    "count_of",
    "duration_text",
    "endpoint",
    "escaped",
    "given_flags",
    "has_colours",
    "idle",
    "interpreter",
    "is_wildcard",
    "keep_large_blocks",
    "logging_setup",
    "name",
    "painted",
    "payload_text",
    "printable",
    "progress",
    "seconds",
    "size",
    "text",
    "time_ago",
    "trim_after_peaks",
    "tune_collector",
    "version",
    "whole_span",
    "with_option_groups",
]
