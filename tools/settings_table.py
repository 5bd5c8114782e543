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
from cli.settings.setting_sources import OTHER_VARIABLES
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
values out of range. A variable that is set but empty counts as unset.

- A *size* is a number of bytes, or a number with kB, MB, GB, KiB, MiB, or GiB: `"16 MiB"`.
- A *time* is a number of seconds, or a number with ms, s, m, h, or d: `"30s"`.
- A *yes/no* setting is `true` or `false`; as a flag it is `--name` or `--no-name`.
- `listen` takes several addresses: a list in TOML, commas in the environment, repeated flags. The
  same holds for lists of texts; a text that contains a comma can be set only in TOML or by a flag.

*Reload* states whether a reload, by `foldmq reload` or SIGHUP, applies a new value while the broker
runs. Other changes take effect at the next start; the reload says which settings these are. If any
new setting is invalid, all previous settings stay in effect, and `foldmq doctor` shows the reason.

| setting | kind | default | reload | meaning |
|---|---|---|---|---|
"""

OUTLOOK = """\

## Notes

- **Limits that foldmq lowers.** `max_connections` is lowered to what the limit on open files allows
  (`ulimit -Hn`), `max_packet_size` to the room in a record of the log: 31.2 MiB with the embedded
  server, 512 KiB with an external one that has NATS's default `max_payload`. Both are logged. A
  `max_packet_size` that you set and that does not fit is rejected.
- **Reload.** A smaller `max_ack_pending` or queue limit does not affect messages that are already
  in flight or queued. `max_packet_size`, `min_packet_rate`, `proxy_protocol`, `tls_*` and `ws_*`
  apply to connections made after the reload.
- **Contradictory settings are rejected**, with a line that names them, such as an address that
  other machines can reach without authentication or `allow_anonymous = true`.
- **The bridge** connects to the NATS server of `bridge_url`; without it, to that of `nats_url`;
  with neither, to the one that `nats_listen` starts. `nats_ca`, `nats_cert` and `nats_key` apply to
  `bridge_url` too.
- **`keep_bytes`**: [what happens near the limit](operations.md#a-full-log)
- **Tables** `[sink.NAME]` ([sinks](sinks.md)) and `[connection.NAME]` ([connections to other MQTT
  brokers](mqtt-bridge.md)) are in the TOML file only.

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
    text = " ".join((field.description or "").split()).replace("|", "\\|")
    return text.replace(" May be repeated.", "")  # that is what a list is


def page() -> str:
    """Return the text of docs/configuration.md."""
    rows = []
    for name, field in Settings.model_fields.items():
        kind = _kind(field)
        reload = "yes" if name in RELOADABLE else "no"
        rows.append(
            f"| `{name}` | {kind}{_bounds(field)} | {_default(field, kind)} | {reload} "
            f"| {_description(field)} |"
        )
    return f"{INTRODUCTION}{_lines(rows)}{OUTLOOK}"


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
