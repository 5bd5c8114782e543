"""Writes docs/configuration.md: every setting of ``foldmq serve``, from cli/settings/settings.py.

Names, bounds, defaults and descriptions are the code's own.

    python tools/settings_table.py          writes the page
    python tools/settings_table.py --check  exits 1 if the page is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cli.common.units import Address, seconds, size, size_shown, time_shown
from cli.settings.setting_sources import OTHER_VARIABLES, PREFIX, flag_of
from cli.settings.settings import RELOADABLE, Settings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"

_BOOLEANS: tuple[object, ...] = (bool, bool | None)

INTRODUCTION = """\
# Settings of `foldmq serve`

Written by `tools/settings_table.py` from `cli/settings/settings.py`; do not edit.

A setting has one name. You can set it with a flag (`--max-ack-pending 100`), in the environment
(`FOLDMQ_MAX_ACK_PENDING=100`), or in a TOML file (`max_ack_pending = 100`). Flags override
environment variables, which override the file, which overrides the default. `--config FILE` or the
variable `FOLDMQ_CONFIG` names the file. Unknown settings are rejected with a suggestion, and so are
values out of range. A variable that is set but empty counts as unset. The variables that Kubernetes
sets for services named `foldmq` or `foldmq-NAME` (`FOLDMQ_NAME_SERVICE_HOST`, `FOLDMQ_NAME_PORT=tcp://...`)
are ignored. A byte order mark at the beginning of a file is skipped.

- A *size* is a number of bytes, or a number with kB, MB, GB, KiB, MiB, or GiB: `"16 MiB"`.
- A *time* is a number of seconds, or a number with ms, s, m, h, or d: `"30s"`.
- A *yes/no* setting is `true` or `false`; as a flag it is `--name` or `--no-name`.
- `listen` takes several addresses: a list in TOML, commas in the environment, repeated flags. The
  same holds for lists of texts; a text that contains a comma can be set only in TOML or by a flag.

*Reload* states whether a reload, by `foldmq reload` or SIGHUP, applies a new value while the broker
runs. Other changes take effect at the next start; the reload says which settings these are. If any
new setting is invalid, all previous settings stay in effect, the command exits with 1, and `foldmq
status` and `foldmq doctor` show the reason until a reload succeeds. SIGHUP reaches a node of a
cluster that follows as well; `foldmq reload` asks the leader.

| setting | flag | variable | kind | default | reload |
|---|---|---|---|---|---|
"""

OUTLOOK = """\

## Notes

- **Limits that foldmq lowers.** `max_connections` is lowered to what the limit on open
  files allows (`ulimit -Hn`), `max_packet_size` to the room in a record of the log. Both are
  logged. A `max_packet_size` that was set explicitly, for all listeners or for one, and does not
  fit is rejected instead, with the largest value that fits. A record is as large as the smallest of
  `max_payload` of the NATS server, `max_msg_size` of the stream and 32 MiB, which is what JetStream
  stores. A packet may take all of it but 772 KiB, or half of it if that is more: 31.2 MiB with
  the embedded server, 512 KiB with an external one that has NATS's default of 1 MiB.
- **Reload.** A smaller `max_ack_pending` or queue limit does not affect messages that are already
  in flight or queued. `max_packet_size`, `min_packet_rate`, `proxy_protocol`, `tls_*` and `ws_*`
  apply to connections made after the reload.
- **Contradictory settings are rejected**: two listeners with the same address or Unix socket file;
  `allow_anonymous = false` without `password_file`, `jwt_keys`, `auth_subject` or `tls_identity`;
  an address that other machines can reach, or a proxy, without any of these,
  `allow_anonymous = true` or `tls_client_certs = "required"`; `nats_*` settings
  without `nats_url`; a `nats_url` with an address that cannot be one, the same one twice, or
  WebSocket and other addresses mixed; `sync` other than `always` together with `nats_url`; one of
  `nats_cert` and `nats_key` without the other; both `nats_password` and `nats_password_file`;
  `nats_replicas` other than 1 without `nats_url`; `keep_until_archived` without `keep` and
  `keep_bytes`; `bridge_user`, `bridge_password`, `bridge_password_file`, `bridge_creds` and
  `bridge_nkey` without `bridge_url`;
  both `bridge_password` and `bridge_password_file`; `nats_listen` together with `nats_url` or
  `bridge_url`; `nats_users`, `nats_anonymous` and `nats_tls_*` without `nats_listen`;
  `nats_tls_cert` and `nats_tls_key` without each other; both `nats_users` and `nats_anonymous`. A
  `nats_listen` without either of these two is refused where other machines can reach it, and where
  `password_file`, `jwt_keys`, `auth_subject`, `tls_identity` or `tls_client_certs = "required"`
  require MQTT clients to authenticate.
- **The bridge** connects to one NATS server: that of `bridge_url`; without it, that of
  `nats_url`; with neither, the server for NATS clients that `nats_listen` starts. With none of
  the three there is no bridge. `nats_ca`, `nats_cert` and `nats_key` apply to `bridge_url` too;
  `nats_tls_*` are for clients of `nats_listen`, and SIGHUP rereads these files.
- **`keep_bytes` has a default that depends on the disk**: a quarter of the space that is free at
  the start, what the logs have included; with several processes, divided among their logs. If the
  log is larger than that already, the limit is a third more than its size, so that an update does
  not cut it, but at most half of the free space more. With `keep = 0`, or on an external NATS
  server, there is no default. The banner, `foldmq config check` and `foldmq status` show the limit.
- **`keep_bytes` is a limit.** Near it the broker spends more of its time on cutting the log. When
  the log reaches it, the broker pauses reading from publishing connections until the log is cut, so
  that the log exceeds the limit by at most a quarter. Data that sessions and retained messages need
  is never cut: if that alone exceeds the limit, the log grows beyond it, input is not paused, and a
  warning names the cause. See [operations.md](operations.md#a-full-log).
- **`keep`, `keep_bytes` and `keep_until_archived`.** The first two limit the log; with the third,
  only archived records are cut. With all three the log has the records of the last 7 days, fewer
  if they exceed `keep_bytes`, and always those that are not archived yet. So `keep = "1h"` is
  enough if `foldmq spark archive` runs every hour. If archiving stops, the log grows beyond its
  limits, and the broker logs a warning every hour, starting when `keep_bytes` is exceeded or when
  the log is 8 days older than `keep`. Records that are not archived are never cut: if the disk is
  full, nothing is acknowledged. See [archive.md](archive.md).
- **`metrics` and `web`** are reachable only from this machine by default. If a configured address
  cannot be used, the broker does not start; if a default one is taken, for example by a second
  broker, it logs a warning and runs without it. See [operations.md](operations.md).
- **`sync`**: [durability.md](durability.md) describes its guarantees.

## Old names

These names of earlier versions still work, with a warning at the start and at each reload:

- `fault_jail` is `fault_backoff`.
- `flapping_jail` is `flapping_backoff`.
- `jail_time` is `takeover_delay`.
- `login_jail` is `login_backoff`.
- `rate_patience` is `throttle_timeout`.

## Other environment variables

| variable | meaning |
|---|---|
| `FOLDMQ_CONFIG` | the TOML file, if there is no `--config` |
| `FOLDMQ_COMPILE` | at installation: `0` compiles nothing, `1` fails if compiling fails |
| `FOLDMQ_NATS_SERVER` | the nats-server program to use instead of the installed one |
| `FOLDMQ_PASSWORD` | the password of `foldmq pub` and `foldmq sub` |
| `FOLDMQ_PLAIN` | `1` runs a checkout as plain Python although it is compiled |
| `FOLDMQ_TO_URL` | `--to-url` of `foldmq import retained` |
| `FOLDMQ_URL` | their `--url` |
"""


def _kind(field: FieldInfo) -> str:
    if field.annotation in _BOOLEANS:
        return "yes/no"
    readers = {getattr(check, "func", None) for check in field.metadata}
    if size in readers:
        return "size"
    if seconds in readers:
        return "time"
    text = str(field.annotation)
    if "Address" in text:
        return "host:port or `off`" if "None" in text else "host:port"
    if "Path" in text:
        return "path"
    if text.startswith("tuple["):
        return "list"
    if "Literal['always']" in text:
        return "`always` or time"
    if "Literal" in text:
        return " ".join(f"`{choice}`" for choice in field.annotation.__args__)  # type: ignore[union-attr]  # a Literal has them
    return "number" if field.annotation in (int, float, int | None) else "text"


def _default(field: FieldInfo, kind: str) -> str:
    value: object = field.default
    if value in (None, ()):
        return "none"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, tuple) and not isinstance(value, Address):
        return ", ".join(f"`{item}`" for item in value)
    if value == 0:
        return "`0`"
    if kind == "size" and isinstance(value, int):
        return size_shown(value)
    if kind == "time" and isinstance(value, float):
        return time_shown(value)
    return f"`{value}`"


def _bounds(field: FieldInfo) -> str:
    least = next((one.ge for one in field.metadata if hasattr(one, "ge")), None)
    above = next((one.gt for one in field.metadata if hasattr(one, "gt")), None)
    most = next((one.le for one in field.metadata if hasattr(one, "le")), None)
    if above is not None:
        return f", more than {above}" + (f", at most {most}" if most is not None else "")
    if most is not None:
        return f", {least} to {most}"
    return f", at least {least}" if least else ""


def _description(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


def page() -> str:
    """Return the text of docs/configuration.md."""
    rows, meanings = [], []
    for name, field in Settings.model_fields.items():
        kind = _kind(field)
        reload = "yes" if name in RELOADABLE else "no"
        rows.append(
            f"| `{name}` | `{flag_of(name)}` | `{PREFIX}{name.upper()}` | {kind}{_bounds(field)} "
            f"| {_default(field, kind)} | {reload} |"
        )
        meanings.append(f"| `{name}` | {_description(field)} |")
    meaning = "\n## What they mean\n\n| setting | meaning |\n|---|---|\n"
    return f"{INTRODUCTION}{_lines(rows)}{meaning}{_lines(meanings)}{OUTLOOK}"


def _lines(rows: list[str]) -> str:
    return "\n".join(rows) + "\n"


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code is 1 if it is not up to date."""
    missing = [name for name in OTHER_VARIABLES if f"`{name}`" not in OUTLOOK]
    if missing:
        sys.stderr.write(f"tools/settings_table.py: no description of {', '.join(missing)}\n")
        return 1
    text = page()
    if "--check" in arguments:
        current = PAGE.read_text("utf-8") if PAGE.exists() else ""
        if current != text:
            sys.stderr.write("docs/configuration.md: run python tools/settings_table.py\n")
            return 1
        return 0
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
