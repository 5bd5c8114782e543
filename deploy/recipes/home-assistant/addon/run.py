"""Start foldmq as an add-on: with the users of the options, known to Home Assistant."""

import json
import os
import secrets
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

DATA = Path(os.environ.get("ADDON_DATA", "/data"))
SUPERVISOR = os.environ.get("SUPERVISOR_URL", "http://supervisor")
USER = "homeassistant"
"""Home Assistant and other add-ons; its password is new at each start."""


def set_users(logins: dict[str, str]) -> Path:
    """Write the password file anew, and return its path."""
    file = DATA / "users"
    file.unlink(missing_ok=True)
    for user, password in logins.items():
        command = ["foldmq", "passwd", str(file), user, "--password-stdin"]
        subprocess.run(command, input=f"{password}\n", text=True, check=True)
    return file


def announce(path: str, body: object) -> None:
    """Send something to the Supervisor; the broker starts without it, too."""
    request = urllib.request.Request(
        f"{SUPERVISOR}/{path}",
        json.dumps(body).encode(),
        {
            "Authorization": f"Bearer {os.environ.get('SUPERVISOR_TOKEN', '')}",
            "Content-Type": "application/json",
        },
    )
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except OSError as error:
        print(f"the Supervisor refused {path}: {error}", file=sys.stderr)


def main() -> None:
    """Become the broker."""
    options = json.loads((DATA / "options.json").read_text("utf-8"))
    logins = {login["username"]: login["password"] for login in options["logins"]}
    logins[USER] = secrets.token_urlsafe(32)
    users = set_users(logins)
    service = {"host": socket.gethostname(), "port": 1883, "ssl": False, "protocol": "3.1.1"}
    service |= {"username": USER, "password": logins[USER]}
    announce("services/mqtt", service)
    announce("discovery", {"service": "mqtt", "config": service})
    settings = {
        "FOLDMQ_LISTEN": "0.0.0.0:1883",
        "FOLDMQ_PASSWORD_FILE": str(users),
        "FOLDMQ_DATA_DIR": str(DATA / "foldmq"),
        "FOLDMQ_WEB": "off",
        "FOLDMQ_METRICS": "off",
    }
    os.execvpe("foldmq", ["foldmq", "serve"], {**settings, **os.environ})


if __name__ == "__main__":
    main()
