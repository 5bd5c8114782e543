"""The settings for NATS clients and the bridge: values, contradictions, and the connection."""

import dataclasses
import io
import os
from pathlib import Path
from typing import Any

import pytest
from harness.certs import Authority

from cli.common.units import Address
from cli.serve.banner import Facts, announce
from cli.serve.key_checks import check_keys
from cli.serve.log_store import bridge_access, check_files, nats_tls, nats_users
from cli.settings.setting_flags import with_settings_flags
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import RELOADABLE, Settings, load_settings
from eventstore.nats.connection import ConnectionOptions
from eventstore.server.client_server import TlsFiles
from eventstore.server.users_file import NatsUsersError

EMBEDDED = ConnectionOptions(urls=("nats://127.0.0.1:1",), user="foldmq", password="made up")


def refusal(flags: dict[str, object], environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags, environment or {})
    assert caught.value.exit_code == 78
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_lists_come_from_flags_variables_and_files(tmp_path: Path) -> None:
    wanted = ("a/+/c", "b/#")
    config = tmp_path / "foldmq.toml"
    config.write_text('bridge_filters = ["a/+/c", "b/#"]\nbridge_map = ["a,b=c", "=site.1"]\n')
    settings = load_settings({}, {}, config)
    assert settings.bridge_filters == wanted
    assert settings.bridge_map == ("a,b=c", "=site.1")
    assert load_settings({"bridge_filters": ["a/+/c", "b/#"]}, {}).bridge_filters == wanted
    assert load_settings({}, {"FOLDMQ_BRIDGE_FILTERS": "a/+/c,b/#"}).bridge_filters == wanted
    assert load_settings({}, {"FOLDMQ_BRIDGE_QOS": "2"}).bridge_qos == 2
    assert not load_settings({}, {"FOLDMQ_BRIDGE": "false"}).bridge


def test_a_list_is_a_flag_that_can_be_given_again() -> None:
    made = with_settings_flags(lambda _config, _flags: None)
    for name in ("bridge_filters", "bridge_map", "bridge_user_map"):
        assert made.__annotations__[name].__origin__ == list[str] | None


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"bridge_filters": ["a/#/b"]}, "--bridge-filters = [\"a/#/b\"]: 'a/#/b': '#' is not a"),
        ({"bridge_filters": ["a+"]}, "'+' is not a whole level"),
        ({"bridge_filters": [""]}, '--bridge-filters = [""]: '),
        ({"bridge_filters": ["$SYS/#"]}, "topics of the broker are not bridged"),
        ({"bridge_filters": ()}, "must be a list with at least one topic filter"),
        ({"bridge_filters": 3}, "must be a list of topic filters"),
        ({"bridge_filters": [3]}, "must be text"),
        ({"bridge_map": ["a"]}, "--bridge-map = [\"a\"]: 'a': must be TOPIC=SUBJECT"),
        ({"bridge_map": ["a/+=b"]}, "topic name contains a wildcard"),
        ({"bridge_map": ["a=b.>"]}, "is not a subject without wildcards"),
        ({"bridge_map": ["a=b c"]}, "is not a subject without wildcards, spaces"),
        ({"bridge_map": ["a=b..c"]}, "and empty tokens"),
        ({"bridge_map": ["a=b", "a=c"]}, "a second rule for this topic"),
        ({"bridge_map": ["a=c", "b=c"]}, "has this subject already"),
        ({"bridge_map": ["a=$JS.API"]}, "subjects of NATS and of foldmq are not bridged"),
        ({"bridge_map": ["a=_INBOX.x"]}, "subjects of NATS and of foldmq are not bridged"),
        ({"bridge_map": ["a=foldmq.log"]}, "subjects of NATS and of foldmq are not bridged"),
        ({"bridge_map": ["$SYS/a=b"]}, "the topic is reserved for the broker"),
        ({"bridge_map": ["a\x1b[1m=b\n"]}, "--bridge-map = "),
        ({"bridge_user_map": ["alice"]}, "must be USER=SUBJECT"),
        ({"bridge_user_map": ["alice=a", "alice=b"]}, "for this user already"),
        ({"bridge_user_map": ["alice=foldmq"]}, "are not bridged"),
        ({"bridge_qos": "3"}, '--bridge-qos = "3": must be at most 2'),
        ({"bridge_qos": "-1"}, '--bridge-qos = "-1": must be at least 0'),
        ({"bridge_ttl": "maybe"}, '--bridge-ttl = "maybe": must be true or false'),
        (
            {"bridge_client_headers": ["Nats-Rollup:"]},
            "--bridge-client-headers = [\"Nats-Rollup:\"]: 'Nats-Rollup:' is not the name of a",
        ),
        ({"bridge_client_headers": ["Foldmq-QoS"]}, "'Foldmq-QoS' is written by foldmq only"),
        ({"bridge_client_headers": 3}, "must be a list of header names"),
        ({"nats_listen": "4222"}, '--nats-listen = "4222": must be host:port'),
        ({"nats_store": "much"}, '--nats-store = "much": must be a size'),
        ({"bridge": "maybe"}, '--bridge = "maybe": must be true or false'),
    ],
)
def test_an_invalid_value_names_the_valid_ones(flags: dict[str, object], problem: str) -> None:
    assert problem in refusal(flags)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            {"bridge_url": "nats://a", "bridge_password": "a", "bridge_password_file": "b"},
            "bridge_password and bridge_password_file cannot be combined: set one of them",
        ),
        (
            {"nats_listen": "127.0.0.1:1", "nats_tls_cert": "a"},
            "nats_tls_cert also needs nats_tls_key",
        ),
        (
            {"nats_listen": "127.0.0.1:1", "nats_tls_key": "a"},
            "nats_tls_key also needs nats_tls_cert",
        ),
        (
            {"nats_listen": "127.0.0.1:1", "nats_tls_client_ca": "a"},
            "nats_tls_client_ca also needs nats_tls_cert",
        ),
        (
            {"nats_listen": "127.0.0.1:1", "nats_users": "a", "nats_anonymous": True},
            "nats_users and nats_anonymous cannot be combined: set one of them",
        ),
        (
            {"nats_listen": "127.0.0.1:1", "nats_url": "nats://a"},
            "nats_listen is for the embedded NATS server: with nats_url",
        ),
        (
            {"nats_listen": "127.0.0.1:1", "bridge_url": "nats://a"},
            "nats_listen and bridge_url cannot be combined",
        ),
        (
            {"bridge_user_map": ["ann=tenants"], "allow_anonymous": True},
            "bridge_user_map also needs password_file, jwt_keys or auth_subject: without them",
        ),
    ],
)
def test_contradictions_are_refused(flags: dict[str, object], problem: str) -> None:
    assert refusal(flags).startswith(problem)


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ("bridge_url", "bridge_user bridge_password bridge_password_file bridge_nkey"),
        ("nats_listen", "nats_users nats_anonymous nats_tls_cert nats_tls_key nats_tls_client_ca"),
    ],
)
def test_settings_without_the_server_that_they_are_for_are_refused(other: str, names: str) -> None:
    for name in names.split():
        assert refusal({name: True if name == "nats_anonymous" else "a"}) == (
            f"{name} also needs {other}"
        )
    creds = {"bridge_creds": "a", "nats_url": "nats://a"}
    assert refusal(creds) == "bridge_creds also needs bridge_url"


@pytest.mark.parametrize(
    ("url", "shown", "wrong"),
    [
        ("nats://h:abc", "nats://h:abc", "not a valid URL"),
        ("nats://good:1,h:abc", "h:abc", "not a valid URL"),
        ("nats://h:70000", "nats://h:70000", "not a valid URL"),
        ("nats://[::1:4222", "nats://[::1:4222", "not a valid URL"),
        ("ws://h:1", "ws://h:1", "the bridge does not support WebSocket"),
        ("wss://h:1", "wss://h:1", "the bridge does not support WebSocket"),
        ("foo://h:1", "foo://h:1", "not the URL of a NATS server"),
        ("nats://:1", "nats://:1", "host or port is missing"),
        ("nats://h:0", "nats://h:0", "host or port is missing"),
        ("ws://\x1bh:1", "ws://\\u001bh:1", "the bridge does not support WebSocket"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(url: str, shown: str, wrong: str) -> None:
    expected = f" = {shown}: {wrong}: must be nats://HOST:PORT or tls://HOST:PORT"
    assert refusal({"bridge_url": url}) == f"bridge_url{expected}"
    assert refusal({"nats_url": url}).startswith(f"nats_url = {shown}: ")
    whole = f"nats://ann:ses,ame@good:1,{url}"
    assert refusal({"bridge_url": whole}).startswith("bridge_url: not a valid URL: must be")
    if url.startswith("ws"):
        assert refusal({"nats_url": "ws://h:1"}).endswith("for the bridge; --no-bridge disables it")
    load_settings({"nats_url": "ws://h:1", "bridge": False}, {})
    load_settings(
        {"nats_url": "h", "bridge_url": "nats://ann:sesame@h:1, tls://[::1]:2, h, h:3"}, {}
    )


@pytest.mark.parametrize("listen", ["0.0.0.0:4222", "[::]:4222", "192.0.2.1:4222", "nats.test:1"])
def test_other_machines_need_users(listen: str) -> None:
    said = refusal({"nats_listen": listen})
    assert said.startswith(f"nats_listen = {listen} can be reached from other machines: set ")
    assert "nats_users" in said
    assert load_settings({"nats_listen": listen, "nats_users": "users"}, {}).nats_users == Path(
        "users"
    )


ENCRYPTED = {"tls_cert": "c", "tls_key": "k", "tls_client_ca": "ca"}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"password_file": "users"}, "password_file"),
        ({"password_file": "users", "allow_anonymous": True}, "password_file"),
        ({"jwt_keys": "keys"}, "jwt_keys"),
        (
            {
                "listen": ["tls://127.0.0.1:8883"],
                **ENCRYPTED,
                "tls_client_certs": "optional",
                "tls_identity": "cn",
            },
            "tls_identity",
        ),
        (
            {"listen": ["tls://127.0.0.1:8883"], **ENCRYPTED, "tls_client_certs": "required"},
            "tls_client_certs",
        ),
    ],
)
def test_settings_that_authenticate_mqtt_clients_require_nats_users(
    flags: dict[str, object], name: str
) -> None:
    opened = {**flags, "nats_listen": "127.0.0.1:4222"}
    said = refusal(opened)
    assert said.startswith("nats_listen = 127.0.0.1:4222 lets any client read and write all topics")
    assert f"{name} restricts who may connect by MQTT: set nats_users" in said
    assert said.endswith("or nats_anonymous = true to allow every client")
    assert load_settings({**opened, "nats_users": "u"}, {}).nats_users == Path("u")
    assert load_settings(opened, {"FOLDMQ_NATS_ANONYMOUS": "true"}).nats_anonymous


def test_one_listener_that_requires_certificates_is_enough(tmp_path: Path) -> None:
    config = tmp_path / "foldmq.toml"
    config.write_text("""
    nats_listen = "127.0.0.1:4222"
    [[listen]]
    address = "127.0.0.1:1883"
    [[listen]]
    address = "tls://127.0.0.1:8883"
    tls_cert = "c"
    tls_key = "k"
    tls_client_ca = "ca"
    tls_client_certs = "required"
    """)
    with pytest.raises(ConfigError, match="although tls_client_certs restricts who may connect"):
        load_settings({}, {}, config)


def test_the_auth_callout_requires_nats_users() -> None:
    opened = {"nats_listen": "127.0.0.1:1", "auth_subject": "foldmq.auth", "nats_anonymous": True}
    assert refusal(opened).startswith("auth_subject with nats_listen also needs nats_users")


def test_explicit_nats_anonymous_is_valid_beyond_loopback() -> None:
    settings = load_settings({"nats_listen": "0.0.0.0:4222", "nats_anonymous": True}, {})
    assert settings.nats_anonymous


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "localhost:0", "[::1]:1", "off"])
def test_loopback_needs_none(listen: str) -> None:
    load_settings({"nats_listen": listen}, {})


def test_none_changes_while_the_broker_runs() -> None:
    names = {name for name in Settings.model_fields if name.startswith(("bridge", "nats_"))}
    assert not names & RELOADABLE


# ------------------------------------------------------------------------ how the bridge connects


def test_without_a_nats_server_there_is_no_bridge() -> None:
    assert bridge_access(load_settings({}, {}), None) is None
    for flags in ({"nats_url": "nats://a"}, {"bridge_url": "nats://a"}):
        assert bridge_access(load_settings({**flags, "bridge": False}, {}), None) is None
    off = load_settings({"nats_listen": "127.0.0.1:1", "bridge": False}, {})
    assert bridge_access(off, EMBEDDED) is None


def test_to_the_embedded_nats_as_its_own_user() -> None:
    settings = load_settings({"nats_listen": "127.0.0.1:1"}, {})
    assert bridge_access(settings, EMBEDDED) == ConnectionOptions(
        urls=("nats://127.0.0.1:1",), user="foldmq", password="made up", name="foldmq bridge"
    )


def test_to_the_nats_of_the_log_as_the_log_does(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("sesame\nmore\n")
    flags = {"nats_url": "nats://a, nats://b", "nats_user": "u"}
    settings = load_settings(
        {**flags, "nats_password_file": tmp_path / "password", "nats_ca": "ca"}, {}
    )
    assert bridge_access(settings, None) == ConnectionOptions(
        urls=("nats://a", "nats://b"),
        user="u",
        password="sesame",
        tls_ca=Path("ca"),
        name="foldmq bridge",
    )


@pytest.mark.parametrize("log", [{}, {"nats_url": "nats://log", "nats_user": "u"}])
def test_to_a_nats_of_its_own_with_nothing_of_the_logs(log: dict[str, object]) -> None:
    given = {"bridge_url": "nats://b", "bridge_user": "v", "bridge_password": "w", "nats_ca": "ca"}
    files = {"bridge_creds": "creds", "bridge_nkey": "seed"}
    found = bridge_access(load_settings({**log, **given, **files}, {}), None)
    assert found == ConnectionOptions(
        urls=("nats://b",),
        user="v",
        password="w",
        credentials=Path("creds"),
        nkey_seed=Path("seed"),
        tls_ca=Path("ca"),
        name="foldmq bridge",
    )


def test_a_password_file_that_cannot_be_read(tmp_path: Path) -> None:
    none = tmp_path / "none"
    settings = load_settings({"bridge_url": "nats://a", "bridge_password_file": none}, {})
    with pytest.raises(ConfigError, match=r"bridge_password_file = .*: cannot read: No such file"):
        bridge_access(settings, None)


@pytest.mark.parametrize("whose", ["nats", "bridge"])
@pytest.mark.parametrize("kind", ["creds", "nkey"])
def test_connection_files_are_checked_before_anything_is_started(
    tmp_path: Path, whose: str, kind: str
) -> None:
    missing = tmp_path / "none"
    settings = load_settings({f"{whose}_url": "nats://a", f"{whose}_{kind}": missing}, {})
    with pytest.raises(ConfigError, match=f"^{whose}_{kind}: cannot read {missing}: No such file"):
        check_files(settings)


def test_a_file_that_holds_no_credentials_is_named(tmp_path: Path) -> None:
    (tmp_path / "creds").write_text("nothing")
    settings = load_settings({"bridge_url": "nats://a", "bridge_creds": tmp_path / "creds"}, {})
    with pytest.raises(ConfigError, match=r"^bridge_creds: .*is not a NATS credentials file"):
        check_files(settings)
    authorities = {"bridge_url": "nats://a", "nats_ca": tmp_path / "none"}
    with pytest.raises(ConfigError, match=r"^nats_ca: cannot use the TLS files"):
        check_files(load_settings(authorities, {}))


def test_files_of_a_bridge_that_is_off_do_not_matter(tmp_path: Path) -> None:
    given = {"bridge_url": "nats://a", "bridge_creds": tmp_path / "none", "bridge": False}
    check_files(load_settings(given, {}))


# ------------------------------------------------------------------------ users and the banner


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o604, True)])
def test_a_users_file_that_others_can_read_is_warned_of(
    tmp_path: Path, mode: int, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users"
    file.write_text("alice:sesame\n")
    file.chmod(mode)
    users = nats_users(load_settings({"nats_listen": "127.0.0.1:1", "nats_users": file}, {}))
    assert [user.name for user in users] == ["alice"]
    said = "".join(capsys.readouterr())
    assert ("chmod o-r" in said) is warned
    assert "sesame" not in said


@pytest.mark.parametrize(
    ("mode", "own", "said"),
    [
        (0o600, True, ""),
        (0o640, True, "chmod go= "),
        (0o604, True, "chmod go= "),
        (0o640, False, ""),  # for the group of the broker
        (0o644, False, "chmod o= "),
    ],
)
@pytest.mark.parametrize(
    "setting", ["cluster_key_file", "encryption_key_file", "personal_key_file"]
)
def test_a_key_that_others_can_read_is_warned_of(
    tmp_path: Path,
    setting: str,
    mode: int,
    own: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "key"
    file.write_text("sesame-and-sesame" * 2 + "\n")
    file.chmod(mode)
    if not own:  # the broker is another user
        monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    given: dict[str, Any] = {setting: file}
    if setting == "cluster_key_file":
        given |= {"cluster": "plant", "nats_url": "nats://a"}
    check_keys(load_settings(given, {}))
    shown = "".join(capsys.readouterr())
    assert shown.count("\n") == bool(said)
    assert said in shown
    assert "sesame" not in shown


def test_a_bad_users_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("alice\n")
    with pytest.raises(NatsUsersError, match=":1: expected NAME:PASSWORD"):
        nats_users(load_settings({"nats_listen": "127.0.0.1:1", "nats_users": file}, {}))
    assert nats_users(load_settings({}, {})) == ()


def test_tls_files_are_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()
    flags = {"nats_listen": "127.0.0.1:1", "nats_tls_cert": server.certificate}
    good = nats_tls(load_settings({**flags, "nats_tls_key": server.key}, {}))
    assert good == TlsFiles(server.certificate, server.key)
    bad = load_settings({**flags, "nats_tls_key": authority.client("ann").key}, {})
    with pytest.raises(ConfigError, match=r"nats_tls_.*does not belong to the certificate"):
        nats_tls(bad)
    assert nats_tls(load_settings({"nats_listen": "127.0.0.1:1"}, {})) is None


FACTS = Facts(
    listening=[Address("127.0.0.1", 1)],
    metrics=None,
    web=None,
    web_token="",
    users=0,
    data="/d",
    node="n",
    nats="x",
    promise="y",
    durable=True,
)


def banner(flags: dict[str, object], **facts: Any) -> list[str]:
    stream = io.StringIO()
    announce(load_settings(flags, {}), dataclasses.replace(FACTS, **facts), stream)
    return stream.getvalue().splitlines()


def test_the_banner_has_the_address_for_nats_clients() -> None:
    place = Address("127.0.0.1", 4222)
    opened = {"nats_listen": "127.0.0.1:4222"}
    lines = banner(opened, nats_clients=place, bridge="nats://127.0.0.1:4222")
    assert "  NATS       127.0.0.1:4222, for any client, without a password" in lines
    assert "  bridge     exchanges messages with NATS at nats://127.0.0.1:4222" in lines
    lines = banner({**opened, "nats_users": "/u"}, nats_clients=place, nats_users=3)
    assert "  NATS       127.0.0.1:4222, for the 3 users of /u" in lines
    assert "  bridge     off" in lines


def test_the_banner_has_tls_and_certificates() -> None:
    place = Address("127.0.0.1", 4222)
    opened = {"nats_listen": "127.0.0.1:4222", "nats_tls_cert": "c", "nats_tls_key": "k"}
    lines = banner(opened, nats_clients=place)
    assert "  NATS       127.0.0.1:4222 (TLS), for any client, without a password" in lines
    opened["nats_tls_client_ca"] = "ca"
    lines = banner(opened, nats_clients=place)
    assert "  NATS       127.0.0.1:4222 (TLS), for clients with a certificate" in lines
    lines = banner({**opened, "nats_users": "/u"}, nats_clients=place, nats_users=1)
    assert "  NATS       127.0.0.1:4222 (TLS), for the one user of /u, with a certificate" in lines


@pytest.mark.parametrize(("client_ca", "warned"), [(None, True), ("ca", False)])
def test_anonymous_nats_clients_are_warned_of(
    client_ca: str | None, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    flags: dict[str, object] = {
        "nats_listen": "127.0.0.1:4222",
        "nats_anonymous": True,
        "nats_tls_cert": "c",
        "nats_tls_key": "k",
        "nats_tls_client_ca": client_ca,
    }
    banner(flags, nats_clients=Address("127.0.0.1", 4222))
    assert ("(nats_anonymous = true)" in "".join(capsys.readouterr())) is warned


def test_the_banner_has_no_lines_without_nats_clients() -> None:
    lines = banner({})
    assert not [line for line in lines if line.startswith(("  NATS", "  bridge"))]
    lines = banner({"nats_url": "nats://a"}, bridge="nats://a")
    assert "  bridge     exchanges messages with NATS at nats://a" in lines
