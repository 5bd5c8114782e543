"""A broker with encryption_key_file: no name and no payload is readable in any of its files."""

import base64
import contextlib
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.fixtures import Clients
from harness.packets import Will

from e2e.tools import refused, run

NAMES = ("alice-7f3a-phone", "carol-7f3a-user", "patient-7f3a-topic", "filter-7f3a-alpha")
CONTENTS = ("payload-7f3a-retained", "payload-7f3a-queued", "payload-7f3a-will")
PUBLISHED = 300
"""Messages: more than the records after which a segment of the index is written."""


def forms(text: str) -> Iterator[bytes]:
    """Every form in which a file could contain a text."""
    data = text.encode()
    yield data
    yield text.encode("utf-16-le")
    yield text.encode("utf-16-be")
    yield data.hex().encode()
    yield data.hex().upper().encode()
    for shift in range(3):  # without the characters that its neighbours decide on
        padded = base64.b64encode(b"\0" * shift + data)
        yield padded[(0, 2, 3)[shift] : len(padded) - 4]


def unpacked(data: bytes) -> bytes:
    """A file and all that is compressed in it."""
    parts, at = [data], data.find(b"\x78")
    while at >= 0:
        with contextlib.suppress(zlib.error):
            parts.append(zlib.decompressobj().decompress(data[at:]))
        at = data.find(b"\x78", at + 1)
    return b"\n".join(parts)


def named_in(folder: Path) -> dict[str, set[str]]:
    """The names and contents that can be read in files, and these files."""
    found: dict[str, set[str]] = {}
    for file in folder.rglob("*"):
        if file.is_file():
            data = unpacked(file.read_bytes())
            for text in (*NAMES, *CONTENTS):
                if any(form in data for form in forms(text)):
                    found.setdefault(text, set()).add(file.relative_to(folder).parts[0])
    return found


def key_file(folder: Path, name: str = "store.key", text: str = "0123456789abcdef" * 4) -> Path:
    file = folder / name
    file.write_text(text + "\n")
    file.chmod(0o600)
    return file


def play(broker: Broker) -> None:
    phone, user, topic, subscribed = NAMES
    retained, queued, last_words = CONTENTS
    with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
        reader = clients.connect(phone, clean=False)
        reader.subscribe((f"{topic}/#", 1), (f"{subscribed}/#", 1))
        reader.disconnect()
        will = Will(f"{topic}/will", last_words.encode(), 1)
        writer = clients.connect(username=user, password=b"x", will=will)
        writer.publish(f"{topic}/kept", retained.encode(), 1, retain=True)
        for _ in range(PUBLISHED):
            writer.publish(f"{topic}/waiting", queued.encode(), 1)
        writer.receive_all()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    key = key_file(tmp_path)
    with Broker(tmp_path, args=["--encryption-key-file", str(key)], forked=True) as made:
        yield made


def test_nothing_is_readable_and_everything_is_there(broker: Broker, tmp_path: Path) -> None:
    key = ("--encryption-key-file", str(tmp_path / "store.key"))
    data = ("--data-dir", str(broker.data_dir))
    assert "encryption AES-256, key in" in broker.log
    play(broker)
    assert "encryption" in run("status", *data).out
    broker.kill_all()
    assert not named_in(broker.data_dir)
    broker.start()
    with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
        reader = clients.connect(NAMES[0], clean=False, session_present=True)
        assert reader.expect_publish(f"{NAMES[2]}/kept", CONTENTS[0].encode(), 1)
    broker.stop()
    run("log", "index", *data, *key)
    assert list(broker.data_dir.rglob("*.index"))
    assert "intact" in run("log", "verify", *data, *key).out
    assert NAMES[2] in run("log", *data, *key, "--topic", f"{NAMES[2]}/#").out
    backup = tmp_path / "backup"
    assert "encrypted, and the key is not in it" in run("backup", str(backup), *data, *key).out
    assert not named_in(broker.data_dir)
    assert not named_in(backup)
    new = tmp_path / "new"
    assert "keys" in run("restore", str(backup), "--data-dir", str(new), *key).out
    assert not named_in(new)


def test_the_search_finds_all_of_it_without_encryption(tmp_path: Path) -> None:
    with Broker(tmp_path, forked=True) as broker:
        play(broker)
        broker.stop()
        run("log", "index", "--data-dir", str(broker.data_dir))
        found = named_in(broker.data_dir)
    assert found[CONTENTS[1]] == {"jetstream"}
    assert all("index" in found[name] for name in (NAMES[0], NAMES[2]))


READERS = ("log", "log verify", "log usage", "replay", "verify", "why --client a --topic b")


def test_a_missing_or_wrong_key_is_one_line(broker: Broker, tmp_path: Path) -> None:
    broker.stop()
    data = ("--data-dir", str(broker.data_dir))
    wrong = str(key_file(tmp_path, "other.key", "f" * 64))
    missing = f"data directory {broker.data_dir} is encrypted: set encryption_key_file"
    other = f"encryption_key_file = {wrong}: this is not the key of data directory"
    for command in (*READERS, f"backup {tmp_path / 'b'}"):
        words = command.split()
        assert refused(*words, *data, code=78).startswith(missing), command
        line = refused(*words, *data, "--encryption-key-file", wrong, code=78)
        assert line.startswith(other), command
    broker.args = []
    assert broker.refused(78).startswith(missing)
    broker.args = ["--encryption-key-file", wrong]
    assert broker.refused(78).startswith(other)
    assert run("config", "check", *data, code=78).err.startswith(f"foldmq: {missing}")
    line = run("config", "check", *data, "--encryption-key-file", wrong, code=78).err
    assert line.startswith(f"foldmq: {other}")
    salvage = ("salvage", *data, "--to", str(tmp_path / "saved"))
    assert refused(*salvage, code=78).startswith(missing)
    assert refused(*salvage, "--encryption-key-file", wrong, code=78).startswith(other)


def test_an_existing_directory_is_copied(tmp_path: Path) -> None:
    key = key_file(tmp_path)
    with Broker(tmp_path, forked=True) as broker:
        play(broker)
        broker.stop()
        broker.args = ["--encryption-key-file", str(key)]
        line = broker.refused(78)
        assert "is not encrypted: copy it into an encrypted one with 'foldmq salvage'" in line
        old = ("--data-dir", str(broker.data_dir))
        before = run("log", *old, "--json").out
        new = tmp_path / "new"
        copied = run("salvage", *old, "--to", str(new), "--encryption-key-file", str(key)).out
        assert "every record in" in copied
        shutil.rmtree(broker.data_dir)
        new.rename(broker.data_dir)
        assert run("log", *old, "--encryption-key-file", str(key), "--json").out == before
        broker.start()
        assert not named_in(broker.data_dir)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("data/key", "k" * 32, "must not be in the data directory"),
        ("short", "k" * 31, "the key has 31 characters, it needs at least 32"),
        ("none", None, "cannot read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_key(tmp_path: Path, name: str, text: str | None, line: str) -> None:
    broker = Broker(tmp_path, args=["--encryption-key-file", str(tmp_path / name)])
    if text is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        key_file(tmp_path, name, text)
    assert line in broker.refused(78)
    data = ("--data-dir", str(broker.data_dir))
    assert line in refused("log", *data, *broker.args, code=78)


def test_several_processes_and_the_server_of_nats_clients(tmp_path: Path) -> None:
    key = ("--encryption-key-file", str(key_file(tmp_path)))
    config = "processes = 2\nnats_listen = '127.0.0.1:0'\nnats_anonymous = true\n"
    with Broker(tmp_path, config=config, args=key, forked=True) as broker:
        play(broker)
        data = ("--data-dir", str(broker.data_dir))
        said = run("status", *data).out
        assert "encryption     AES-256, key in" in said
        broker.stop()
        assert not named_in(broker.data_dir)
        assert "all 2 logs are intact" in run("log", "verify", *data, *key).out


def test_a_server_of_nats_clients_with_plain_streams(tmp_path: Path) -> None:
    config = "nats_listen = '127.0.0.1:0'\nnats_anonymous = true\n"
    broker = Broker(
        tmp_path, config=config, args=["--encryption-key-file", str(key_file(tmp_path))]
    )
    stream = broker.data_dir / "nats-clients/jetstream/jetstream/$G/streams/ORDERS"
    stream.mkdir(parents=True)
    broker.data_dir.chmod(0o700)
    (stream / "meta.inf").write_text("{}")
    assert "save the streams of NATS clients with 'nats account backup'" in broker.refused(78)
    assert (stream / "meta.inf").read_text() == "{}"
