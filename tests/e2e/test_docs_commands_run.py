"""The commands in the users' pages run against a broker as they stand there.

Paths and addresses of the pages become those of the test; the clients and topics that the pages
name exist. Commands that need other machines are listed with what tries them instead.
"""

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import Broker, environment
from harness.certs import Authority
from harness.fixtures import EXTERNAL, Clients
from test_docs_commands import DOCS, PAGES, block_commands

pytestmark = [
    pytest.mark.skipif(bool(EXTERNAL), reason="needs to start its own foldmq"),
    pytest.mark.timeout(300),
]
ELSEWHERE = {
    "outbox export": "test_outbox_export.py",
    "10.0.0.1": "test_cluster.py, tests/recipes",
    "nats.example": "test_web_access.py",
    "mqtt.example.com": "tests/recipes",
    "old.example.net": "test_importing.py",
    "spark ": "test_spark_jobs.py, test_archive_command.py, test_rebuild_command.py",
    "--processes": "test_processes.py",
    "-p0": "test_processes.py",
    "-p1": "test_processes.py",
    "store.key": "test_encryption.py",
    " OLD": "test_encryption.py",
}
"""What commands contain that need other machines, Spark, several processes or keys."""
ENDLESS = re.compile(
    r"(sub|actors tail|top|web(?!-)|mcp|log -f|history .* -f)\b(?!.* (-C|-E|--once)\b)"
)
"""Commands that run until they are stopped."""
FINDING = re.compile(r"(doctor|acl check|import nats|sessions show telegraf-in)\b")
"""Commands whose exit code 1 is an answer."""
REFUSED = {
    "pub -t a -m x --content-type text/plain -V 311": "needs MQTT 5",
    "diff 1200 now --session screen": "beyond the end of the log",
    "why --position 8.0": "is not a message",
    "confirm-clock": "no start left any out",
    "outbox retry orders": "no messages to be sent again",
    "erase --topic 'patients/17/#' --yes": "no topic with sealed contents matches",
    "erase --client phone-alice --yes": "has no token",
}
"""Commands that a page shows for what they refuse, or that name places in another log."""
DATA = "foldmq-data"
PASSWORD = b"a password of 20 bytes\n"
ACL = "user ann\ntopic readwrite home/#\n"
NATS = 'mqtt { port: 1884 }\njetstream { store_dir: "%s" }\n'


def commands() -> list[str]:
    """The commands of the users' pages, in their order, each once."""
    pages = [page for page in PAGES if not page.is_relative_to(DOCS / "contribute")]
    listed = [one for page in pages for one in block_commands(page.read_text("utf-8"))]
    here = [one for one in listed if not any(part in one for part in ELSEWHERE)]
    return [*dict.fromkeys(here)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the files that the pages name."""
    for folder in ("etc/foldmq", "etc/mosquitto", "etc/nats", "foldmq", "backup"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/mosquitto/mosquitto.conf").write_text("listener 1883\nallow_anonymous true\n")
    (tmp_path / "etc/mosquitto/acl").write_text(ACL)
    (tmp_path / "etc/mosquitto/passwd").write_text("")
    (tmp_path / "etc/nats/nats-server.conf").write_text(NATS % (tmp_path / "store"))
    (tmp_path / "etc/foldmq/config.toml").write_text("max_connections = 100\n")
    rules = re.search(r"(?s)```toml\n(.*?)```", (DOCS / "permissions.md").read_text("utf-8"))
    assert rules is not None
    (tmp_path / "permissions.toml").write_text(rules[1])
    (tmp_path / "nats-users").write_text("plant:choose-a-password\n")
    (tmp_path / "nats-users").chmod(0o600)
    authority = Authority(tmp_path / "certificates")
    certificate = authority.server()
    (tmp_path / "server.crt").symlink_to(certificate.certificate)
    (tmp_path / "server.key").symlink_to(certificate.key)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def broker(place: Path) -> Iterator[Broker]:
    running = Broker(place)
    running.data_dir = place / DATA
    running.configure(
        '[sink.orders]\nkind = "http"\nurl = "http://127.0.0.1:9/"\nfilters = ["o/#"]\n'
    )
    running.start()
    clients = Clients("127.0.0.1", running.port)
    for name in ("pump-7", "phone-1", "phone-3", "archive", "sensor-7"):
        clients.connect(name, clean=False)
    clients.connect("screen", clean=False).subscribe(("hall/#", 1), ("cfg/#", 1))
    clients.connect("writer").publish("hall/door", b"open", 1, retain=True)
    try:
        yield running
    finally:
        clients.close()
        running.clean_up()


def of_this_place(command: str, place: Path, port: int) -> list[str]:
    """Return the arguments with the paths and addresses of the test."""
    text = re.sub(r"\bNEWDIR\b", f"{place}/salvaged", command)
    text = re.sub(r"\bDIR\b", f"{place}/restored", text)
    text = text.replace("/var/lib/foldmq-restored", f"{place}/restored")
    text = text.replace("/var/lib/foldmq", f"{place}/{DATA}")
    text = text.replace("/tmp/foldmq-copy", f"{place}/copy")
    text = re.sub(r"(?<![\w.])/(etc|backup|srv)/", rf"{place}/\1/", text)
    text = text.replace("127.0.0.1:1883", f"127.0.0.1:{port}")
    text = re.sub(r"(?<!\d{4}-\d\d-\d\d )(?<!T)\b09:[34]0\b", "now", text)  # the log is new
    text = re.sub(r"(?<==| )(127\.0\.0\.1|0\.0\.0\.0):(?!1883)\d+", "127.0.0.1:0", text)
    arguments = shlex.split(text)
    if arguments[0] == "serve":  # addresses are taken here: its settings are checked
        arguments[:1] = ["config", "check"]
    if arguments[0] == "import":
        shutil.rmtree(place / "etc/foldmq/imported", ignore_errors=True)
    if arguments[:2] == ["acl", "import"]:
        (place / "permissions.toml").unlink()
    if arguments[0] == "sessions" and arguments[1] in {"kick", "rm", "purge"}:
        arguments.append("--yes")  # as it is answered at a terminal
    return arguments


def run(arguments: list[str], port: int, *, endless: bool) -> tuple[int, str]:
    """Run a command; stop one that is endless after two seconds. Return exit code and stderr."""
    env = {**environment(), "FOLDMQ_URL": f"mqtt://127.0.0.1:{port}"}
    if "-u" in arguments:
        env["FOLDMQ_PASSWORD"] = "secret"
    given = PASSWORD * 2 if arguments[0] == "passwd" else None
    if not endless:
        code, _, err = forkserver.run(arguments, env, 60, given)
        return code, err.decode()
    with tempfile.TemporaryFile() as errors, Path("/dev/null").open("wb") as nothing:
        process = forkserver.start(arguments, env, nothing.fileno(), errors.fileno())
        try:
            code = process.wait(2)
        except subprocess.TimeoutExpired:
            process.send_signal(2)
            code = process.wait(20)
        errors.seek(0)
        return code, errors.read().decode()


def test_commands_of_the_pages_run(place: Path, broker: Broker) -> None:
    """Endless commands only look: others run meanwhile."""
    results = {}
    with ThreadPoolExecutor(8) as beside:
        for command in commands():
            arguments = of_this_place(command, place, broker.port)
            endless = ENDLESS.match(command) is not None
            results[command] = beside.submit(run, arguments, broker.port, endless=endless)
            if not endless:
                results[command].result()
    failed = {}
    for command, result in results.items():
        code, err = result.result()
        endless = ENDLESS.match(command) is not None
        allowed = {0, 130, -2} if endless else {0, 1} if FINDING.match(command) else {0}
        refusal = REFUSED.get(command)
        right = code in allowed if refusal is None else code and refusal in err
        if not right or "Traceback" in err:
            failed[command] = (code, err)
    assert failed == {}, "\n".join(f"{key}: {value}" for key, value in failed.items())


def test_what_tries_the_other_commands_exists() -> None:
    names = {name for value in ELSEWHERE.values() for name in value.split(", ")}
    tests = Path(__file__).parent.parent
    assert [name for name in names if not any(tests.rglob(name.removeprefix("tests/")))] == []
