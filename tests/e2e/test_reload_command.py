"""``foldmq reload`` prints the broker's outcome, and a failure is known until it is mended."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from harness import forkserver
from harness.broker import Broker, environment, free_port
from harness.certs import Authority
from harness.rawclient import RawClient
from harness.waiting import until

from e2e.tools import run

pytestmark = pytest.mark.timeout(180)
ALLOWED = '[[allow]]\nanonymous = true\nusers = ["*"]\nboth = ["#"]\n'


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_refused_reload_is_known_until_one_succeeds(
    make_broker: Callable[..., Broker], tmp_path: Path, processes: int
) -> None:
    permissions = tmp_path / "permissions.toml"
    permissions.write_text(ALLOWED)
    config = f"permissions = '{permissions}'\nprocesses = {processes}\n"
    broker = make_broker(config)
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    permissions.write_text("[[allow]")
    refused = run("reload", *where, code=1)
    assert refused.out == ""
    lines = refused.err.splitlines()
    assert len(lines) == processes
    assert all("not reloaded, the previous settings stay in effect: " in one for one in lines)
    assert all(f"{permissions}: not TOML" in one for one in lines)
    problems = [orjson.loads(one) for one in run("doctor", *where, "--json", code=1).lines]
    assert [one["title"] for one in problems] == ["did not take its new settings"] * processes
    assert f"{permissions}: not TOML" in problems[0]["evidence"]
    # The next commands are run as they are given, here in vain.
    check, reload = problems[0]["next"].split(" && ")
    assert " config check " in check
    assert run(*check.split()[1:], code=78).err.startswith(f"foldmq: {permissions}: not TOML")
    assert run(*reload.split()[1:], code=1).err == refused.err
    assert "settings not reloaded " in run("status", *where).out
    with RawClient(broker.port) as client:
        assert client.connect("still").code == 0
    permissions.write_text(ALLOWED)
    broker.configure(config + "topic_aliases_out = 3\n")
    run(*check.split()[1:])
    done = run("reload", *where).lines
    assert sum(one.endswith("settings reloaded") for one in done) == processes
    assert sum(one.endswith("need a restart: topic_aliases_out") for one in done) == processes
    assert run("doctor", *where).lines[0].startswith("no problems found")
    assert "not reloaded" not in run("status", *where).out
    acted = run("log", *where, "--type", "OperatorActed").lines
    assert sum(one.endswith(": reload settings") for one in acted) == processes
    if processes > 1:
        until(lambda: "settings reloaded in the main process" in broker.log, "the main process")
    broker.stop()


def set_password(file: Path, password: str, *arguments: str) -> list[str]:
    """The lines of ``foldmq passwd``."""
    command = ["passwd", str(file), "ann", "--password-stdin", *arguments]
    code, out, err = forkserver.run(command, environment(), 60.0, f"{password}\n".encode())
    assert (code, err) == (0, b"")
    return out.decode().splitlines()


def test_a_new_password_takes_effect_at_once(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    file = tmp_path / "passwords"
    set_password(file, "first")
    broker = make_broker(f"password_file = '{file}'\n")
    broker.start()
    assert (
        set_password(file, "second")[-1] == "a running broker uses it after a reload: foldmq reload"
    )
    where = ("--data-dir", str(broker.data_dir))
    assert set_password(file, "third", "--reload", *where)[-1] == "settings reloaded"
    with RawClient(broker.port) as client:
        assert client.connect("c", username="ann", password=b"third").code == 0
    broker.stop()


def diagnosis(where: tuple[str, str]) -> str:
    """The output of ``foldmq doctor``, whatever its exit code."""
    _, out, _ = forkserver.run(["doctor", *where], environment(), 60.0)
    return out.decode()


def test_a_reload_that_only_the_main_process_refuses(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """It has the NATS server for clients, and therefore its certificate."""
    server = Authority(tmp_path).server()
    certificate = server.certificate.read_bytes()
    config = (
        f"processes = 2\nnats_listen = '127.0.0.1:{free_port()}'\nnats_anonymous = true\n"
        f"nats_tls_cert = '{server.certificate}'\nnats_tls_key = '{server.key}'\n"
    )
    broker = make_broker(config)
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    server.certificate.write_text("nothing")
    refused = run("reload", *where, code=1)
    (line,) = refused.err.splitlines()
    assert "in the main process: " in line
    assert str(server.certificate) in line
    (problem,) = [orjson.loads(one) for one in run("doctor", *where, "--json", code=1).lines]
    assert problem["title"] == "did not take its new settings"
    assert "in the main process: " in problem["evidence"]
    assert "in the main process: " in run("status", *where).out
    lock = broker.data_dir / "p0" / "foldmq.lock"
    before = lock.read_text()
    os.kill(int(before), signal.SIGKILL)
    until(lambda: lock.read_text() not in ("", before), "the next process")
    until(lambda: "in the main process: " in diagnosis(where), "its report")
    server.certificate.write_bytes(certificate)
    broker.hangup()
    until(lambda: "in the main process: " not in diagnosis(where), "the successful reload")
    assert run("reload", *where).out.count("settings reloaded") == 2
    broker.stop()
