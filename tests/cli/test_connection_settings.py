"""The tables ``[connection.NAME]`` of the TOML file: what is accepted, and the errors."""

from pathlib import Path

import pytest

from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings, load_settings
from cli.settings.sink_settings import check_sink_files, outbox_request

LEAST = """
addresses = ["broker.example"]
topic = ['sensors/# out 2 site1/ hq/', "cmd/# out 1"]
"""
HTTP = 'kind = "http"\nurl = "http://a/"\nfilters = ["#"]\n'


def load(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "foldmq.toml"
    file.write_text(text)
    return load_settings({}, {}, file)


def test_a_connection_is_a_destination(tmp_path: Path) -> None:
    text = f'[connection.plant2]\n{LEAST}\nfrom = "oldest"\nmax_behind = "1h"\n'
    settings = load(tmp_path, text)
    (connection,) = settings.connections.values()
    assert settings.destinations == {"plant2": connection}
    assert (connection.kind, connection.begin, connection.max_behind) == ("mqtt", "oldest", 3600)
    assert connection.filters == ("site1/sensors/#", "cmd/#")
    assert connection.table == {
        "addresses": ["broker.example"],
        "topic": ["sensors/# out 2 site1/ hq/", "cmd/# out 1"],
    }


def test_the_digest_changes_with_what_is_sent(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        return load(tmp_path, f"[connection.plant2]\n{text}").connections["plant2"].digest

    assert digest(LEAST) == digest(LEAST + "keepalive_interval = 30\n")
    assert digest(LEAST) != digest(LEAST.replace("out 2", "out 1"))
    assert digest(LEAST) != digest(LEAST.replace("hq/", "hr/"))


def test_a_connection_without_messages_out_is_no_destination(tmp_path: Path) -> None:
    text = LEAST.replace("out 1", "in 1").replace("out 2", "in 0")
    settings = load(tmp_path, f'[connection.plant2]\n{text}local_username = "ann"\n')
    assert settings.destinations == {}
    connection = settings.connections["plant2"]
    assert (connection.takes, connection.filters, connection.user) == (True, (), "ann")
    (row,) = outbox_request(settings, "mylog", {"path": "s"})["sinks"]
    assert (row["name"], row["kind"], row["table"]) == ("plant2", "mqtt", connection.table)


def test_files_are_checked_before_a_start(tmp_path: Path) -> None:
    settings = load(tmp_path, f'[connection.plant2]{LEAST}bridge_cafile = "/nowhere/ca"\n')
    with pytest.raises(ConfigError) as raised:
        check_sink_files(settings)
    assert raised.value.args == (
        "connection.plant2: bridge_cafile = /nowhere/ca: cannot read: No such file or directory",
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[connection.plant2]\n", "foldmq.toml: connection.plant2: addresses is missing"),
        ("connection = 1\n", "foldmq.toml: connection: must be tables, such as [connection.NAME]"),
        (f'[connection."a b"]{LEAST}', "foldmq.toml: connection.a b: 'a b' is not a name"),
        (
            f"[connection.plant2]{LEAST}bridge_psk = 1\n",
            "connection.plant2: bridge_psk: not supported: TLS needs certificates",
        ),
        (
            f'[connection.plant2]{LEAST}max_behind = "soon"\n',
            'connection.plant2.max_behind = "soon": must be',
        ),
        (
            f"[connection.plant2]{LEAST}".replace("cmd/#", "$SYS/#"),
            "connection.plant2: $SYS/#: the log has no such messages",
        ),
        (
            f'listen = ["ws://127.0.0.1:1"]\n[connection.plant2]{LEAST}'.replace("out 1", "in 1"),
            "connection.plant2: messages in need a listener for TCP or a Unix socket without TLS",
        ),
        (
            f"pseudonyms = true\n[connection.plant2]{LEAST}".replace("out 1", "in 1"),
            "connection.plant2: with pseudonyms, messages in and out need two connections",
        ),
        (
            f'keep = "1h"\nkeep_bytes = 0\n[connection.plant2]{LEAST}max_behind = "2h"\n',
            "connection.plant2: max_behind is longer than keep, and needs max_behind_bytes",
        ),
        (
            f"[sink.plant2]\n{HTTP}[connection.plant2]{LEAST}",
            "connection.plant2: there is a sink of this name",
        ),
    ],
)
def test_errors_are_one_line(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, text)
    (line,) = raised.value.args
    assert error in line
    assert "\n" not in line
