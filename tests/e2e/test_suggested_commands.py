"""Commands that ``doctor`` and the page suggest in an incident run as they are pasted."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import Broker, environment, free_port
from harness.certs import Authority
from harness.fixtures import Clients, fill
from harness.nats import PASSWORD, USER, Nats
from harness.rawclient import ConnectionClosedError
from harness.waiting import until

from e2e.pasting import run_as_pasted
from e2e.webclient import served

pytestmark = pytest.mark.timeout(240)
PAGE = "commit_timeout = 2\nweb = '127.0.0.1:0'\n"
FULL = "runs out"
LOST = "lost files of the log"
NOT_SERVED = "does not serve clients fully"


ONE_OR_TWO = [pytest.param(1, marks=pytest.mark.long), 2]
"""How many processes; one alone only in `make drills`."""


def check(broker: Broker, titles: set[str], cwd: Path, **variables: str) -> None:
    """Wait for problems; run what ``doctor`` and the page suggest."""
    where = ["doctor", "--data-dir", str(broker.data_dir), "--json"]
    known: dict[str, str] = {}

    def problems() -> bool:
        _, out, _ = forkserver.run(where, {**environment(), **variables}, 60)
        known.update((one["title"], one["next"]) for one in map(json.loads, out.splitlines()))
        return titles <= known.keys()

    until(problems, f"{titles}")
    suggested = served(broker).good("/problems").suggested
    assert suggested
    run_as_pasted(suggested, cwd)
    run_as_pasted(known.values(), cwd, **variables)


@pytest.mark.parametrize("processes", ONE_OR_TWO)
def test_of_settings_and_certificates(
    make_broker: Callable[..., Broker], tmp_path: Path, processes: int
) -> None:
    certificate = Authority(tmp_path / "certificates").server(expired=True)
    config = (
        f"{PAGE}processes = {processes}\nmax_queued_messages = 1\n"
        f"tls_cert = '{certificate.certificate}'\ntls_key = '{certificate.key}'\n"
        f"[[listen]]\naddress = 'mqtts://127.0.0.1:{free_port()}'\n"
    )
    broker = make_broker()
    config += f"[[listen]]\naddress = '127.0.0.1:{broker.port}'\n"
    broker.configure(config)
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    for name in ("-v", "it's away"):
        clients.connect(name, clean=False).subscribe(("hall", 1))
    clients.close()
    with_load = Clients("127.0.0.1", broker.port)
    writer = with_load.connect("writer")
    for _ in range(3):
        writer.publish("hall", b"", 1)
    with_load.close()
    broker.configure("keep_bytes = 1\n" + config)
    broker.hangup()
    titles = {"has expired", "did not take its new settings", "loses messages: its queue is full"}
    check(broker, titles, tmp_path)
    broker.stop()


@pytest.mark.parametrize("processes", ONE_OR_TWO)
def test_of_a_store_that_is_gone(
    make_broker: Callable[..., Broker], tmp_path: Path, processes: int
) -> None:
    broker = make_broker(f"{PAGE}processes = {processes}\n")
    broker.start()
    shutil.rmtree(broker.data_dir / "jetstream")
    check(broker, {LOST}, tmp_path)
    broker.kill_all()


@pytest.mark.parametrize("processes", ONE_OR_TWO)
def test_of_a_full_disk(
    make_broker: Callable[..., Broker], tmp_path: Path, small_disk: Path, processes: int
) -> None:
    broker = make_broker(f"{PAGE}processes = {processes}\n")
    broker.data_dir = small_disk / "data"
    broker.start()
    fill(small_disk)
    clients = Clients("127.0.0.1", broker.port)
    with contextlib.suppress(ConnectionClosedError):
        for number in count():  # until the broker refuses them
            clients.connect(f"c{number}", clean=False)
    check(broker, {FULL, NOT_SERVED}, tmp_path)
    broker.kill_all()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    server = Nats(tmp_path / "nats server")
    server.folder.mkdir()
    server.start()
    yield server
    server.kill()


def test_of_a_broker_on_a_foreign_server(
    make_broker: Callable[..., Broker], tmp_path: Path, nats: Nats
) -> None:
    secret = tmp_path / "the password"
    secret.write_text(PASSWORD)
    config = (
        f"{PAGE}nats_url = '{nats.url}'\nnats_user = '{USER}'\nbridge = false\n"
        f"nats_password_file = '{secret}'\n"
    )
    broker = make_broker(config)
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    clients.connect("away", clean=False)
    clients.close()
    broker.configure(config + "keep_bytes = 1\n")
    broker.hangup()
    access = {
        "FOLDMQ_NATS_URL": nats.url, "FOLDMQ_NATS_USER": USER,
        "FOLDMQ_NATS_PASSWORD_FILE": str(secret),
    }  # fmt: skip
    check(broker, {"did not take its new settings"}, tmp_path, **access)
    broker.stop()
