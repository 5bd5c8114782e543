"""``foldmq config check``: checks that ``serve`` would accept its settings and their files."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cli.commands.certificate_advice import advise_on_certificates, certificate_line
from cli.common import text
from cli.common.colour import painted
from cli.common.package_version import version
from cli.common.units import Address
from cli.logs.key_files import store_key
from cli.serve.auth_factory import Access
from cli.serve.certificates import read_certificates
from cli.serve.key_checks import check_keys
from cli.serve.listener_factory import Listeners
from cli.serve.log_bound import LogBound, log_bound
from cli.serve.log_store import check_files, fit_packet_size, nats_tls, nats_users
from cli.settings.access_files import make_permissions
from cli.settings.setting_sources import ConfigError, read_layers
from cli.settings.settings import Settings, check_settings, load_settings
from cli.settings.sink_settings import check_sink_files
from eventstore.datadir import DataDir
from eventstore.format.record_size import STORED_MAX, largest_record
from eventstore.server.embedded_server import EmbeddedServer
from eventstore.server.store_encryption import usable_key
from protocol.errors import FoldmqError

_SUBJECT = "foldmq.log.{}"
_NODE = "01234567"
"""As long as the id of a node."""
_SECRETS = ("nats_password", "bridge_password")


def run_config_check(flags: dict[str, object], config: Path | None) -> None:
    """Check the settings and print those that are set; raises the errors of ``serve``, all at once.

    Nothing is started or listened on, and all files written for the check are removed. Files are
    read only if the settings are valid.
    """
    settings = load_settings(flags, os.environ, config, contradictory=True)
    _check_together(settings)
    check_configuration(settings)
    rows = list(sources(flags, os.environ, config))
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, value, where in rows:
        shown = json.dumps(value, default=str)
        sys.stdout.write(f"{name.ljust(width)}  {text.escaped(shown, 200)}  ({where})\n")
    for table, names in (("sink", settings.sinks), ("connection", settings.connections)):
        sys.stdout.writelines(f"[{table}.{name}]\n" for name in names)
    here = DataDir(settings.data_dir) if settings.nats_url is None else None
    bound = log_bound(settings, here, "FOLDMQ_LOG_*" if settings.processes == 1 else "")
    if settings.keep_bytes is None:
        kept = bound.shown(settings.keep)
        sys.stdout.write(f"at a start now, the log would be kept {kept}\n")
    check_room(settings, here, bound)
    _check_certificates(settings)
    count = text.count_of(len(rows), "setting")
    verdict = painted(f"the configuration is valid for foldmq {version}", "green", sys.stdout)
    sys.stdout.write(f"{verdict}: {count} set, all others have their defaults\n")


def _check_together(settings: Settings) -> None:
    """Raise ConfigError with all contradictions of settings, and files that cannot be read."""
    problems: list[str] = []
    try:
        check_settings(settings)
    except ConfigError as error:
        problems += error.args
    for group in (settings, *(() if problems else settings.listeners())):
        for name, value in group:
            if not isinstance(value, Path) or name == "data_dir":
                continue
            if name == "personal_key_file" and not value.exists():  # the first start makes it
                if not value.parent.is_dir():
                    problems.append(f"{name} = {value}: {value.parent} does not exist: create it")
                continue
            try:
                value.open("rb").close()
            except OSError as error:
                problems.append(f"{name} = {value}: cannot be read: {error.strerror}")
    if problems:
        raise ConfigError(*dict.fromkeys(problems))


def check_room(settings: Settings, here: DataDir | None, bound: LogBound) -> None:
    """Print a line for each destination that may hold more of the log than there can be."""
    room = here.free_bytes() + here.stored_bytes("FOLDMQ_LOG_*") if here is not None else 0
    room //= max(1, settings.processes)
    most = min(filter(None, (bound.bytes, room)), default=0)
    limit = "keep_bytes" if most == bound.bytes else "the disk"
    for name, destination in settings.destinations.items():
        if most and destination.max_behind_bytes > most:
            label = painted("warning:", "yellow", sys.stderr)
            size = text.size(destination.max_behind_bytes)
            sys.stderr.write(
                f"{label} destination {name}: max_behind_bytes is {size}, but {limit} allows a log "
                f"of {text.size(most)}: set it lower\n"
            )


def _check_certificates(settings: Settings) -> None:
    """Print a line for each certificate that ends soon; raise ConfigError if one is not valid."""
    status = {"certificates": read_certificates(settings), "time_ms": time.time_ns() // 1_000_000}
    advice = [*advise_on_certificates([status])]
    for entry in advice:
        label = painted("warning:", "yellow", sys.stderr)
        if entry.severity != "problem":
            sys.stderr.write(f"{label} {certificate_line(entry)}\n")
    problems = [certificate_line(entry) for entry in advice if entry.severity == "problem"]
    if problems:
        raise ConfigError(*problems)


def _check_store(settings: Settings) -> None:
    """Raise StoreKeyError if the embedded NATS server would not start with the key of its store."""
    if settings.nats_url is None:
        key = store_key(settings.encryption_key_file)
        usable_key(DataDir(settings.data_dir), key, remedy=EmbeddedServer.remedy)


def check_configuration(settings: Settings) -> None:
    """Read all files that the settings name; raises the errors of ``serve``, all in one."""
    listeners = Listeners(settings)
    # A NATS server that is not embedded may accept less: only a start tells.
    subject = _SUBJECT.format(settings.cluster or _NODE)
    checks: tuple[Callable[[], object], ...] = (
        lambda: listeners.options(settings, settings.max_packet_size),
        lambda: make_permissions(settings),
        lambda: Access(settings, "", None).authenticator(settings).close(),
        lambda: check_files(settings),
        lambda: check_sink_files(settings),
        lambda: check_keys(settings),
        lambda: _check_store(settings),
        lambda: nats_users(settings),
        lambda: nats_tls(settings),
        lambda: fit_packet_size(settings, largest_record(STORED_MAX, subject)),
        DataDir(settings.data_dir).check_usable,
    )
    errors: list[FoldmqError] = []
    try:
        for check in checks:
            try:
                check()
            except FoldmqError as error:
                errors.append(error)
    finally:
        listeners.close()
    if errors:
        first = errors[0]
        first.args = tuple(dict.fromkeys(line for error in errors for line in error.args))
        raise first


def sources(
    flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None
) -> Iterator[tuple[str, object, str]]:
    """Yield the settings that are set: name, value as written, and source; secrets are hidden."""
    seen = set()
    for layer in read_layers(flags, environment, config, Settings.model_fields):
        for name, value in layer.values.items():
            if name in seen:
                continue
            seen.add(name)
            where = layer.where if layer.kind == "file" else layer.shown(name)
            url_with_user = isinstance(value, str) and "://" in value and "@" in value
            hidden = name in _SECRETS or url_with_user
            shown = "***" if hidden else str(value) if isinstance(value, Address) else value
            yield name, shown, where
