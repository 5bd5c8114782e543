"""Settings: their sources, their units, and the refusal of invalid values."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from actors.access.login_backoff import BackoffOptions
from actors.limits.broker_options import BrokerOptions
from actors.limits.limit_options import LimitOptions, Quota
from cli.common.units import Address, size_shown, time_shown
from cli.serve.auth_factory import backoff_options
from cli.serve.banner import admitted
from cli.serve.broker_process import MemberFacts, member_settings
from cli.serve.config_check import run_config_check
from cli.serve.limits_factory import limit_options, make_options
from cli.settings.listener_settings import PER_LISTENER
from cli.settings.setting_flags import with_settings_flags
from cli.settings.setting_sources import OTHER_VARIABLES, ConfigError
from cli.settings.settings import RELOADABLE, Settings, check_settings, load_settings
from eventstore.server.process import BINARY_VARIABLE

SCRAM_TWICE = """
auth_method = 'SCRAM-SHA-256'
auth_subject = 'foldmq.auth'
password_file = 'users'
nats_url = 'nats://127.0.0.1'
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def refusal(
    flags: dict[str, object] | None = None,
    environment: dict[str, str] | None = None,
    config: Path | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags or {}, environment or {}, config)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 78
    return str(caught.value)


def test_all_problems_are_named_at_once(config: Path) -> None:
    config.write_text("listn = ['a']\nack_wait = 'soon'\nflapping_backoff = -3\njwt_audience = 5\n")
    with pytest.raises(ConfigError) as caught:
        load_settings({"keep": "x"}, {"FOLDMQ_WEB": "y", "FOLDMQ_MAX_PACKET": "1"}, config)
    assert {line.partition(": must")[0] for line in caught.value.args} == {
        'environment: unknown setting "FOLDMQ_MAX_PACKET" (did you mean "FOLDMQ_MAX_PACKET_SIZE"?)',
        f'{config}: unknown setting "listn" (did you mean "listen"?)',
        '--keep = "x"',
        'FOLDMQ_WEB = "y"',
        f'{config}: ack_wait = "soon"',
        f"{config}: flapping_backoff = -3",
        f"{config}: jwt_audience = 5",
    }
    with pytest.raises(ConfigError) as caught:
        load_settings({"bridge_user": "a", "nats_user": "b", "listen": "tls://127.0.0.1:1"}, {})
    assert [line.split(" ")[0] for line in caught.value.args] == [
        "listen",
        "nats_user",
        "bridge_user",
    ]


BAD_VALUES = ("", "x", "-1", "nan", 5, -5, 1.5, True, [], [1], {"a": 1}, "a b", "\0", 10**30)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_no_phrase_of_the_validation_library(name: str) -> None:
    for value in BAD_VALUES:
        try:
            load_settings({name: value}, {})
        except ConfigError as error:
            for line in error.args:
                assert not re.search(r"Input|String|Value error|should|pydantic|is not valid", line)


def test_defaults_are_loopback_and_anonymous() -> None:
    settings = load_settings({}, {})
    assert [str(one) for one in settings.listen] == ["127.0.0.1:1883"]
    assert settings.anonymous
    assert settings.sync == "always"
    assert settings.nats_url is None


def test_flags_before_environment_before_file_before_defaults(config: Path) -> None:
    config.write_text("max_ack_pending = 7\nack_wait = 7\ntakeover_delay = 7\n")
    environment = {"FOLDMQ_MAX_ACK_PENDING": "6", "FOLDMQ_ACK_WAIT": "6", "PATH": "/bin"}
    settings = load_settings({"max_ack_pending": "5"}, environment, config)
    assert (settings.max_ack_pending, settings.ack_wait, settings.takeover_delay) == (5, 6.0, 7.0)
    assert settings.connect_timeout == 10.0


def test_config_file_from_environment(config: Path) -> None:
    config.write_text("max_sessions = 3\n")
    assert load_settings({}, {"FOLDMQ_CONFIG": str(config)}).max_sessions == 3


def test_flag_names_the_config_file_before_the_environment(config: Path, tmp_path: Path) -> None:
    config.write_text("max_sessions = 3\n")
    missing = {"FOLDMQ_CONFIG": str(tmp_path / "missing.toml")}
    assert load_settings({}, missing, config).max_sessions == 3
    assert refusal(environment=missing).endswith(
        "missing.toml: cannot read: No such file or directory"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ('"4096"', 4096),
        ('"16 MiB"', 16 << 20),
        ('"16mib"', 16 << 20),
        ('"1.5 KiB"', 1536),
        ('"2 MB"', 2_000_000),
        ('"64kB"', 64_000),
    ],
)
def test_sizes(config: Path, text: str, size: int) -> None:
    config.write_text(f"max_packet_size = {text}\n")
    assert load_settings({}, {}, config).max_packet_size == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("0.5", 0.5),
        ('"30"', 30.0),
        ('"30s"', 30.0),
        ('"500 ms"', 0.5),
        ('"5m"', 300.0),
        ('"1h"', 3600.0),
        ('"7d"', 604_800.0),
    ],
)
def test_times(config: Path, text: str, seconds: float) -> None:
    config.write_text(f"ack_wait = {text}\n")
    assert load_settings({}, {}, config).ack_wait == seconds


def test_listen_takes_several_addresses_and_ipv6(config: Path) -> None:
    config.write_text('listen = ["127.0.0.1:1883", "[::1]:1884"]\n')
    first, second = (one.endpoint for one in load_settings({}, {}, config).listen)
    assert (first.kind, first.place) == ("tcp", Address("127.0.0.1", 1883))
    assert (second.place, str(second)) == (Address("::1", 1884), "[::1]:1884")
    listen = load_settings({}, {"FOLDMQ_LISTEN": "[::1]:1, localhost:2"}).listen
    assert [one.endpoint.place for one in listen] == [Address("::1", 1), Address("localhost", 2)]


@pytest.mark.parametrize(
    ("written", "kind", "shown"),
    [
        ("mqtt://127.0.0.1:1", "tcp", "127.0.0.1:1"),
        ("MQTTS://localhost:8883/", "tls", "tls://localhost:8883"),
        ("ssl://[::1]:8883", "tls", "tls://[::1]:8883"),
        ("ws://127.0.0.1:8080", "ws", "ws://127.0.0.1:8080"),
        ("wss://127.0.0.1:8443", "wss", "wss://127.0.0.1:8443"),
        ("unix:///run/foldmq.sock", "unix", "unix:/run/foldmq.sock"),
        ("unix:here.sock", "unix", "unix:here.sock"),
    ],
)
def test_endpoints(written: str, kind: str, shown: str) -> None:
    more = {"tls_cert": "c", "tls_key": "k"}
    (one,) = load_settings({"listen": [written], **more}, {}).listen
    assert (one.endpoint.kind, str(one)) == (kind, shown)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("quic://127.0.0.1:1", "must be host:port, tls://host:port, ws://host:port"),
        ("tls://127.0.0.1", "must be host:port such as"),
        ("ws://127.0.0.1:80/mqtt", "set the WebSocket path with ws_path"),
        ("unix:", "must be unix:/path"),
        ("unix:/run/\x1b[31m", "must be unix:/path"),
        ("unix:/" + "x" * 200, "a path of at most 107 bytes"),
        ("tls://127.0.0.1:1", "TLS needs tls_cert and tls_key"),
    ],
)
def test_bad_endpoints(written: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load_settings({"listen": [written]}, {})


def test_a_listener_has_settings_of_its_own(config: Path) -> None:
    config.write_text(
        """
        max_connections = 7
        allow_anonymous = false
        password_file = "users"
        [[listen]]
        address = "127.0.0.1:1"
        allow_anonymous = true
        connect_timeout = "3s"
        [[listen]]
        address = "wss://0.0.0.0:2"
        tls_cert = "c"
        tls_key = "k"
        ws_origins = ["https://a.example"]
        max_connections = 5
        """
    )
    first, second = load_settings({}, {}, config).listeners()
    assert (first.anonymous, first.connect_timeout, first.max_connections) == (True, 3, 7)
    assert (second.anonymous, second.connect_timeout, second.max_connections) == (False, 10, 5)
    assert (second.tls_cert, second.ws_origins) == (Path("c"), ("https://a.example",))
    assert [str(one) for one in second.listen] == ["wss://0.0.0.0:2"]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("max_connections = 0", "listen = 127.0.0.1:1: max_connections = 0: must be at least 1"),
        ("max_connections = true", "max_connections = true: must not be true or false"),
        ('data_dir = "x"', '"data_dir" cannot be set for a single listener'),
        ('unix_mode = "9"', "must be an octal file mode"),
        ('proxy_from = ["x"]', "must be addresses or networks such as 10.0.0.0/8"),
        ('ws_path = "mqtt"', 'must be paths that begin with "/"'),
        ('ws_origins = ["a"]', "must be origins such as"),
        ('address = "0.0.0.0:1"', "listen = 0.0.0.0:1 can be reached from other machines"),
        ('address = "tls://localhost:1"', "TLS needs tls_cert and tls_key"),
        ("allow_anonymous = false", "no client can connect with allow_anonymous = false"),
        ("proxy_protocol = true", "listen = 127.0.0.1:1 can be reached from other machines"),
        ('"\\u001b[31mfoo" = 1', '"\\u001b[31mfoo" cannot be set for a single listener'),
        ('ws_path = "/\\u0000"', "must not contain a NUL character"),
    ],
)
def test_bad_settings_of_a_listener(config: Path, lines: str, problem: str) -> None:
    address = "" if "address" in lines else 'address = "127.0.0.1:1"'
    config.write_text(f"[[listen]]\n{address}\n{lines}\n")
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load_settings({}, {}, config)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("localhost:7", "ws://LOCALHOST:7"),
        ("unix:/run/x/a", "unix:/run/x/../x/a"),
    ],
)
def test_two_listeners_at_one_place_are_refused(first: str, second: str) -> None:
    listed = {"listen": [first, second]}
    assert refusal(listed).endswith("another listener already has this address")


def test_port_0_may_be_configured_twice() -> None:
    assert (
        len(load_settings({"listen": ["127.0.0.1:0", "ws://127.0.0.1:0", "[::1]:7"]}, {}).listen)
        == 3
    )


def with_tls(address: str, **more: object) -> dict[str, object]:
    files = {"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a"}
    return {"listen": [address], **files, **more}


def test_a_certificate_that_is_required_is_enough() -> None:
    settings = load_settings(with_tls("tls://0.0.0.0:1", tls_client_certs="required"), {})
    assert settings.anonymous
    assert settings.certified
    named = with_tls("tls://0.0.0.0:1", tls_client_certs="required", tls_identity="cn")
    assert not load_settings(named, {}).anonymous
    known = with_tls("tls://0.0.0.0:1", tls_client_certs="required", password_file="users")
    assert not load_settings(known, {}).anonymous


def test_the_banner_shows_which_clients_need_a_certificate() -> None:
    settings = load_settings(with_tls("tls://0.0.0.0:1", tls_client_certs="required"), {})
    assert admitted(settings, 0) == "clients with a certificate"
    named = with_tls("tls://0.0.0.0:1", tls_client_certs="required", tls_identity="cn")
    assert admitted(load_settings(named, {}), 0) == "client certificates"
    assert admitted(load_settings({}, {}), 0) == "any client, without a password"


def test_a_required_certificate_without_identity_and_no_other_clients_is_refused() -> None:
    flags = with_tls("tls://0.0.0.0:1", tls_client_certs="required", allow_anonymous=False)
    message = refusal(flags)
    assert "no client can connect" in message
    assert "tls_identity" in message
    assert not load_settings({**flags, "tls_identity": "cn"}, {}).anonymous


def test_an_optional_certificate_does_not_authenticate() -> None:
    optional = with_tls("tls://127.0.0.1:1", tls_client_certs="optional")
    assert load_settings(optional, {}).anonymous
    assert not load_settings({**optional, "tls_identity": "cn"}, {}).anonymous
    assert "can be reached" in refusal(with_tls("tls://0.0.0.0:1", tls_client_certs="optional"))


def test_certificates_say_nothing_about_listeners_without_tls() -> None:
    required = with_tls("tls://0.0.0.0:1", tls_client_certs="required")
    assert "can be reached" in refusal({**required, "listen": ["tls://0.0.0.0:1", "0.0.0.0:2"]})
    mixed = {**required, "listen": ["tls://0.0.0.0:1", "127.0.0.1:2"]}
    assert "listen = 127.0.0.1:2: no client can connect" in refusal(mixed)
    assert load_settings({**mixed, "allow_anonymous": True}, {}).anonymous


def test_clients_behind_a_proxy_are_not_local() -> None:
    assert "can be reached" in refusal({"proxy_protocol": True})
    assert "can be reached" in refusal({"proxy_protocol": True, "listen": ["unix:/run/foldmq/s"]})
    assert not load_settings({"proxy_protocol": True, "password_file": "users"}, {}).anonymous
    assert load_settings({"proxy_protocol": True, "allow_anonymous": True}, {}).reachable


def test_a_listener_needs_an_address(config: Path) -> None:
    config.write_text("[[listen]]\nmax_connections = 1\n")
    with pytest.raises(ConfigError, match="needs an address"):
        load_settings({}, {}, config)


@pytest.mark.parametrize("name", ["metrics", "web"])
def test_a_listener_for_operators_is_one_address_or_off(config: Path, name: str) -> None:
    def given(line: str) -> object:
        config.write_text(f"{name} = {line}\n")
        return getattr(load_settings({}, {}, config), name)

    default = getattr(load_settings({}, {}), name)
    assert default.loopback
    assert given('"0.0.0.0:9100"') == Address("0.0.0.0", 9100)
    assert given('"[::1]:0"') == Address("::1", 0)
    assert given('"off"') is None
    assert getattr(load_settings({}, {f"FOLDMQ_{name.upper()}": "off"}), name) is None
    assert getattr(load_settings({name: "localhost:1"}, {}), name) == Address("localhost", 1)
    assert refusal({name: "on"}).startswith(f'--{name} = "on": must be host:port such as')


@pytest.mark.parametrize("name", ["metrics", "web"])
def test_a_configured_address_is_distinguished_from_a_default(name: str) -> None:
    default = str(getattr(load_settings({}, {}), name))
    assert name not in load_settings({}, {}).model_fields_set
    assert name in load_settings({name: default}, {}).model_fields_set
    assert name in load_settings({}, {f"FOLDMQ_{name.upper()}": default}).model_fields_set


def test_sys_interval_is_a_time_and_may_be_nought() -> None:
    assert load_settings({}, {}).sys_interval == 10.0
    assert load_settings({"sys_interval": "1m"}, {}).sys_interval == 60.0
    assert load_settings({"sys_interval": "0"}, {}).sys_interval == 0.0
    assert refusal({"sys_interval": "-1"}).startswith('--sys-interval = "-1": must be')


def test_unknown_key_in_file_is_refused_with_the_nearest_name(config: Path) -> None:
    config.write_text("max_ack_pendig = 1\n")
    assert refusal(config=config) == (
        f'{config}: unknown setting "max_ack_pendig" (did you mean "max_ack_pending"?)'
    )
    config.write_text("[limits]\nmax_ack_pending = 1\n")
    assert refusal(config=config) == f'{config}: unknown setting "limits"'


def test_flag_spelling_in_the_file_is_understood_as_a_slip(config: Path) -> None:
    config.write_text("data-dir = 'x'\n")
    assert refusal(config=config).endswith('(did you mean "data_dir"?)')


def test_unknown_variable_is_refused_with_the_nearest_name() -> None:
    assert refusal(environment={"FOLDMQ_LISTN": "x"}) == (
        'environment: unknown setting "FOLDMQ_LISTN" (did you mean "FOLDMQ_LISTEN"?)'
    )


def test_other_variables_are_no_settings() -> None:
    assert BINARY_VARIABLE in OTHER_VARIABLES
    load_settings({}, {BINARY_VARIABLE: "/usr/bin/nats-server", "FOLDMQ_CONFIG": ""})


def test_what_kubernetes_sets_for_a_service_called_foldmq_is_ignored() -> None:
    links = {
        "FOLDMQ_SERVICE_HOST": "10.0.0.1",
        "FOLDMQ_SERVICE_PORT": "1883",
        "FOLDMQ_SERVICE_PORT_MQTT": "1883",
        "FOLDMQ_PORT": "tcp://10.0.0.1:1883",
        "FOLDMQ_PORT_1883_TCP": "tcp://10.0.0.1:1883",
        "FOLDMQ_PORT_1883_TCP_ADDR": "10.0.0.1",
        "FOLDMQ_WEB_SERVICE_HOST": "10.0.0.2",
        "FOLDMQ_WEB_SERVICE_PORT": "80",
        "FOLDMQ_WEB_SERVICE_PORT_HTTP": "80",
        "FOLDMQ_WEB_PORT": "tcp://10.0.0.2:80",
        "FOLDMQ_LISTEN_2_PORT": "udp://10.0.0.2:80",
        "FOLDMQ_MAX_PORT_80_SCTP_PROTO": "sctp",
        "FOLDMQ_MAX_PORT_80_TCP_PORT": "80",
    }
    assert load_settings({}, links).model_dump() == load_settings({}, {}).model_dump()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FOLDMQ_LISTEN_PORT", "1883"),
        ("FOLDMQ_WEB_PORT", "8080"),
        ("FOLDMQ_METRICS_SERVICE_PORT", "x"),
    ],
)
def test_a_slip_that_looks_like_a_service_is_refused(name: str, value: str) -> None:
    assert f'unknown setting "{name}"' in refusal(environment={name: value})


def test_an_empty_variable_is_not_set(config: Path) -> None:
    config.write_text("max_ack_pending = 7\nlisten = ['127.0.0.1:1884']\n")
    empty = dict.fromkeys(("FOLDMQ_MAX_ACK_PENDING", "FOLDMQ_LISTEN", "FOLDMQ_WEB"), "")
    assert load_settings({}, empty, config) == load_settings({}, {}, config)
    assert load_settings({}, empty, config).max_ack_pending == 7


def test_a_byte_order_mark_is_skipped(config: Path) -> None:
    config.write_bytes(b"\xef\xbb\xbfmax_ack_pending = 7\n")
    assert load_settings({}, {}, config).max_ack_pending == 7


@pytest.mark.parametrize(
    ("value", "paths"),
    [("'/a'", ("/a",)), ("'/a,/b'", ("/a", "/b")), ("['/a', '/']", ("/a", "/"))],
)
def test_websocket_paths(config: Path, value: str, paths: tuple[str, ...]) -> None:
    config.write_text(f"ws_path = {value}\n")
    assert load_settings({}, {}, config).ws_path == paths
    config.write_text(f"listen = [{{address = 'ws://127.0.0.1:1', ws_path = {value}}}]\n")
    assert load_settings({}, {}, config).listeners()[0].ws_path == paths


def test_each_invalid_element_of_a_list_is_named(config: Path) -> None:
    config.write_text("listen = ['a:b', '127.0.0.1:1', 'c:d']\nws_origins = ['x y', 'z']\n")
    with pytest.raises(ConfigError) as error:
        load_settings({}, {}, config)
    listen = "must end with a port from 0 to 65535"
    assert [line.partition(": ")[2] for line in error.value.args if "listen" in line] == [
        f'listen = "a:b": {listen}',
        f'listen = "c:d": {listen}',
    ]


def test_a_bad_server_is_named_once(config: Path) -> None:
    config.write_text("nats_url = 'foo://x'\n")
    with pytest.raises(ConfigError) as error:
        load_settings({}, {}, config)
    assert len(error.value.args) == 1


def test_networks_of_mapped_addresses_are_those_of_ipv4(config: Path) -> None:
    config.write_text("proxy_from = ['::ffff:10.0.0.0/104', '::ffff:192.0.2.1', 'fd00::/8']\n")
    found = [str(network) for network in load_settings({}, {}, config).proxy_from]
    assert found == ["10.0.0.0/8", "192.0.2.1/32", "fd00::/8"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("max_ack_pending = 'many'", 'max_ack_pending = "many": must be a whole number'),
        ("max_ack_pending = 0", "max_ack_pending = 0: must be at least 1"),
        ("max_ack_pending = 65536", "max_ack_pending = 65536: must be at most 65535"),
        ("max_ack_pending = 1.5", "max_ack_pending = 1.5: must be a whole number"),
        ("max_ack_pending = true", "max_ack_pending = true: must not be true or false"),
        ("ack_wait = nan", "ack_wait = NaN: must be at least 0"),
        ("ack_wait = inf", "ack_wait = Infinity: must be a number"),
        ("connect_timeout = 0", "connect_timeout = 0: must be more than 0"),
        ("record_qos0 = ['a/#/b']", "record_qos0 = "),
        ("record_qos0 = ['$SYS/#']", "$SYS/#: the log has no such messages"),
        ("streams = ['a']", "a: must be NAME=FILTER"),
        ("streams = ['a/b=c']", "a/b=c: must be NAME=FILTER"),
        ("streams = ['a=b', 'a=c']", "the stream a is declared twice"),
        ("streams = ['a=b/#/c']", "streams = "),
        ("[streams]\na = 'x/+'\nb = '$SYS/#'", "$SYS/#: the log has no such messages"),
        ("reject_qos2_publish = 'maybe'", 'reject_qos2_publish = "maybe": must be true or false'),
        ("data_dir = 3", "data_dir = 3: must be text"),
        ("data_dir = '~nosuchuser/x'", 'data_dir = "~nosuchuser/x": this home directory'),
        ("listen = []", "listen = []: must be a list with at least one host:port"),
        ("listen = '::1:1883'", 'listen = "::1:1883": must be host:port, with an IPv6 address in'),
        ("auth_timeout = '100s'", 'auth_timeout = "100s": must be at most 1m'),
        ("max_packet_size = 10", "max_packet_size = 10: must be at least 1 KiB"),
        ("listen = 'localhost'", 'listen = "localhost": must be host:port such as'),
        ("listen = 'localhost:x'", 'listen = "localhost:x": must end with a port from 0 to 65535'),
        ("listen = 'localhost:65536'", "must end with a port from 0 to 65535"),
        ("log_level = 'trace'", "log_level = \"trace\": must be 'debug', 'info', 'warning' or"),
        (
            "max_packet_size = '1 XiB'",
            'max_packet_size = "1 XiB": must be a size: a number of bytes, or',
        ),
        ("ack_wait = '1 year'", 'ack_wait = "1 year": must be a time: a number of seconds, or'),
        ("sync = 'sometimes'", 'sync = "sometimes": must be a time'),
        ('password_file = "a\\u0000b"', '"a\\u0000b": must not contain a NUL character'),
        ('tls_ciphers = "A\\u0000"', "must not contain a NUL character"),
        ('data_dir = "\\u0000"', "must not contain a NUL character"),
        ('ws_origins = ["https://a", "https://\\u0000"]', "must not contain a NUL character"),
        ('jwt_issuer = "\\u0000"', "must not contain a NUL character"),
    ],
)
def test_an_invalid_value_names_setting_value_and_valid_values(
    config: Path, line: str, problem: str
) -> None:
    config.write_text(line + "\n")
    message = refusal(config=config)
    assert message.startswith(f"{config}: ")
    assert problem in message


def test_bad_value_names_its_source() -> None:
    assert refusal({"ack_wait": "x"}).startswith('--ack-wait = "x": ')
    assert refusal(environment={"FOLDMQ_ACK_WAIT": "x"}).startswith('FOLDMQ_ACK_WAIT = "x": ')


@pytest.mark.parametrize("whose", ["nats", "bridge"])
def test_a_password_is_never_shown(config: Path, whose: str) -> None:
    config.write_text(f"{whose}_password = 12345\n{whose}_url = 'nats://localhost'\n")
    assert "12345" not in refusal(config=config)
    flags: dict[str, object] = {f"{whose}_password": "sesame", f"{whose}_url": "nats://localhost"}
    assert "sesame" not in repr(load_settings(flags, {}))


@pytest.mark.parametrize("text", ["a = = 1", "\x00", "[listen"])
def test_file_that_is_not_toml(config: Path, text: str) -> None:
    config.write_text(text)
    assert refusal(config=config).startswith(f"{config}: not TOML: ")


def test_file_in_a_home_that_is_not_known() -> None:
    assert "the home directory of nosuchuser is not known" in refusal(config=Path("~nosuchuser/x"))


def test_file_that_is_not_text(config: Path) -> None:
    config.write_bytes(b'data_dir = "\xff"')
    assert refusal(config=config) == f"{config}: not UTF-8 text"


@pytest.mark.parametrize("value", ["false", "true"])
@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_a_setting_that_takes_a_word_names_it_instead_of_true_and_false(
    config: Path, name: str, value: str
) -> None:
    kind = Settings.model_fields[name].annotation
    if kind == Address | None:
        said = 'must be host:port or "off", not true or false'
    elif name == "sync":
        said = 'must be "always" or a time such as 1s, not true or false'
    elif get_origin(kind) is Literal:
        *words, last = map(repr, get_args(kind))
        said = f"must be {', '.join(words)} or {last}"
    elif kind in (bool, bool | None):
        return
    else:
        said = "must not be true or false"
    config.write_text(f"{name} = {value}\n")
    assert refusal(config=config).endswith(f": {said}")


@pytest.mark.parametrize("listen", ["0.0.0.0:1883", "[::]:1883", "192.0.2.1:1883", "mqtt.test:1"])
def test_other_machines_need_users_or_an_explicit_yes(listen: str) -> None:
    message = refusal({"listen": [listen]})
    assert listen in message
    assert "password_file" in message
    assert "allow_anonymous = true" in message
    assert load_settings({"listen": [listen], "allow_anonymous": True}, {}).anonymous
    assert not load_settings({"listen": [listen], "password_file": "users"}, {}).anonymous


def test_one_reachable_address_among_loopback_ones_is_enough_to_refuse() -> None:
    refusal({"listen": ["127.0.0.1:1883", "0.0.0.0:1884"]})


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1"])
def test_loopback_is_anonymous_by_default(listen: str) -> None:
    assert load_settings({"listen": [listen]}, {}).anonymous


def test_password_file_ends_anonymous_access_unless_it_is_allowed() -> None:
    assert not load_settings({"password_file": "users"}, {}).anonymous
    assert load_settings({"password_file": "users", "allow_anonymous": True}, {}).anonymous
    assert "password_file" in refusal({"allow_anonymous": False})


CLUSTER = {"cluster": "c1", "nats_url": "nats://a"}
NAMES = {"personal_clients": "phone-*", "personal_key_file": "/k/keys"}
PERSONAL = {"personal_topics": "a/#", "personal_key_file": "/k/keys"}
PARTITIONED = {**CLUSTER, "partitions": 2, "cluster_listen": "127.0.0.1:7883"}


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"nats_user": "a"}, "nats_user also needs nats_url"),
        ({"nats_ca": "a"}, "nats_ca also needs nats_url"),
        ({"nats_replicas": "3"}, "nats_replicas needs nats_url"),
        ({"nats_domain": "hub"}, "nats_domain also needs nats_url"),
        ({"cluster": "c1"}, "cluster also needs nats_url"),
        ({"cluster": "c 1", "nats_url": "nats://a"}, "cluster = c 1: must be a name of letters"),
        ({"cluster": "", "nats_url": "nats://a"}, "cluster = : must be a name of letters"),
        ({"cluster": "x" * 33, "nats_url": "nats://a"}, "at most 32 characters"),
        ({"cluster_key_file": "/key"}, "cluster_key_file also needs cluster"),
        ({"partitions": 2}, "partitions also needs cluster: use processes"),
        ({**CLUSTER, "partitions": 2}, "partitions = 2 also needs cluster_listen"),
        ({**PARTITIONED, "processes": 2}, "processes = 2 and cluster cannot be combined"),
        (
            {**PARTITIONED, "bridge_user_map": ["ann=a"], "password_file": "users"},
            "partitions = 2 and bridge_user_map cannot be combined yet",
        ),
        ({"processes": 2, "record_qos0": ["a"]}, "record_qos0 cannot be combined yet"),
        (
            {**PARTITIONED, "pseudonyms": True},
            "pseudonyms in a cluster also needs cluster_key_file",
        ),
        ({**PARTITIONED, "cluster": "x" * 29}, "must be at most 28 characters with several logs"),
        ({**PARTITIONED, "cluster_listen": "127.0.0.1:65535"}, "choose one below 65535"),
        ({**PARTITIONED, "cluster_advertise": "10.0.0.1:65535"}, "choose one below 65535"),
        ({**PARTITIONED, "metrics": "127.0.0.1:65534"}, "choose one below 65534"),
        ({"processes": 3, "metrics": "127.0.0.1:65534"}, "choose one below 65534"),
        (
            {"cluster": "c1", "nats_url": "nats://a", "pseudonyms": "true"},
            "pseudonyms in a cluster also needs cluster_key_file",
        ),
        ({"nats_url": "nats://a", "nats_domain": "a.b"}, "nats_domain = a.b: must be a name of"),
        ({"nats_url": "nats://a", "nats_domain": ""}, "nats_domain = : must be a name of"),
        ({"nats_url": "nats://a,nats://a:4222"}, "nats_url = nats://a:4222: named twice"),
        ({"nats_url": "nats://a,"}, "nats_url: an address is missing beside a comma"),
        ({"nats_url": ""}, "nats_url: no server is named"),
        ({"nats_url": "nats://a", "nats_cert": "a"}, "nats_cert also needs nats_key"),
        ({"nats_url": "nats://a", "sync": "1s"}, "sync is for the embedded NATS"),
        (
            {"nats_url": "nats://a", "nats_password": "a", "nats_password_file": "b"},
            "nats_password and nats_password_file cannot be combined: set one of them",
        ),
        ({"personal_topics": "a/#"}, "personal_topics also needs personal_key_file"),
        ({**PERSONAL, "personal_topics": "a/{}/b"}, "a/{}/b: names in topics are not replaced"),
        ({**PERSONAL, "personal_topics": "a/#/b"}, "personal_topics = a/#/b: '#' is not"),
        ({**PERSONAL, "personal_topics": "$SYS/#"}, "topics that begin with $ are not sealed"),
        ({**PERSONAL, "data_dir": "/k"}, "must not be in the data directory"),
        ({"personal_clients": "a*"}, "personal_clients also needs personal_key_file"),
        ({**NAMES, "personal_users": "{}"}, "personal_users = {}: write * for the name of a"),
        ({**NAMES, "pseudonyms": True}, "personal_clients and pseudonyms cannot be combined"),
        (
            {**NAMES, "personal_users": "a*", "bridge_user_map": "ann=x"},
            "personal_users and bridge_user_map cannot be combined",
        ),
        (
            {**NAMES, "personal_users": "a*", "jwt_keys": "/k/jwt", "web_api_jwt": True},
            "personal_users and web_api_jwt cannot be combined: the log has its users' names",
        ),
        (
            {"keep_until_archived": True, "keep": 0},
            "keep_until_archived also needs keep or keep_bytes: without them",
        ),
    ],
)
def test_contradictions_are_refused(flags: dict[str, object], problem: str) -> None:
    assert problem in refusal(flags)


def test_every_limit_of_the_broker_has_the_same_default_as_a_setting() -> None:
    settings = load_settings({}, {}).model_dump()
    limits = {field.name: field.default for field in dataclasses.fields(BrokerOptions)}
    internal = {"node", "max_record", "message_cache", "bounds", "pseudonym_key"}
    internal |= {"keep_bytes"}  # its default depends on the disk: test_log_bound.py
    internal |= {"close_denied", "users_digest", "users_elsewhere", "will_grace", "record_format"}
    internal |= {"destinations"}
    assert limits.keys() - internal <= settings.keys()
    assert {name: settings[name] for name in limits.keys() - internal} == {
        name: limits[name] for name in limits.keys() - internal
    }


def test_the_bounds_on_clients_have_the_same_defaults_as_the_settings() -> None:
    assert limit_options(load_settings({}, {}), 1 << 20) == LimitOptions()


def test_the_login_backoff_has_the_same_defaults_as_the_settings() -> None:
    assert backoff_options(load_settings({}, {})) == BackoffOptions()
    assert backoff_options(load_settings({"login_backoff": "5m"}, {})).duration == 300.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("auth_method = 'X'", "auth_method also needs auth_subject"),
        (SCRAM_TWICE, "cannot be combined with password_file"),
        ("auth_method = ''", "auth_method"),
    ],
)
def test_bad_authentication_methods(config: Path, text: str, says: str) -> None:
    config.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_settings({}, {}, config)


def test_each_limit_follows_its_setting() -> None:
    """Every setting of a limit changes one limit, or a window and its delay."""
    fixed = {"address", "burst", "client", "overload_after", "user"}
    before = limit_options(load_settings({}, {}), 1 << 20)
    for field in dataclasses.fields(LimitOptions):
        if field.name in fixed:
            continue
        name = field.name
        value = getattr(before, field.name)
        after = limit_options(load_settings({name: int(value) + 1}, {}), 1 << 21)
        assert getattr(after, field.name) == int(value) + 1, name
    for whose in ("address", "user", "client"):
        name = f"publish_rate_per_{whose}"
        quota = getattr(limit_options(load_settings({name: 7}, {}), 1 << 20), whose)
        assert quota == Quota(publish_rate=7)


def test_reloadable_names_are_settings() -> None:
    assert set(Settings.model_fields) >= RELOADABLE


def test_settings_of_one_listener_can_be_reloaded() -> None:
    assert PER_LISTENER <= RELOADABLE


def test_a_reload_applies_only_reloadable_settings(config: Path) -> None:
    config.write_text("max_sessions = 1\nnats_replicas = 1\n[[listen]]\naddress = 'unix:/x/s'\n")
    old = load_settings({}, {}, config)
    config.write_text(
        "max_connections = 2\nevent_loop = 'asyncio'\n"
        "[[listen]]\naddress = 'unix:/x/s'\nunix_mode = '600'\n"
    )
    merged = old.reloaded(load_settings({}, {}, config))
    assert (merged.max_sessions, merged.max_connections) == (1_000_000, 2)
    assert merged.event_loop == "auto"
    assert merged.listeners()[0].unix_mode == "600"
    # A default limit is lowered without a warning, also by a reload.
    assert merged.model_fields_set == {"listen", "nats_replicas", "max_connections"}
    config.write_text("listen = '127.0.0.1:2'\nunix_mode = '600'\n")
    merged = old.reloaded(load_settings({}, {}, config))
    assert [str(one) for one in merged.listen] == ["unix:/x/s"]
    assert merged.listeners()[0].unix_mode == "600"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("keep", "7d"),
        ("ack_wait", "30s"),
        ("session_expiry", "never"),
        ("publish_bytes", "none"),
        ("max_queued_bytes", "1 GiB"),
        ("max_packet_size", "16 MiB"),
        ("max_ack_pending", "1024"),
        ("listen", "127.0.0.1:1883"),
        ("metrics", "127.0.0.1:18831"),
    ],
)
def test_help_gives_defaults_as_one_would_write_them(name: str, shown: str) -> None:
    made = with_settings_flags(lambda _config, _flags: None)
    option = inspect.signature(made).parameters[name].annotation.__metadata__[0]
    assert option.help.endswith(f" [default: {shown}]")


def test_defaults_are_in_the_largest_whole_unit() -> None:
    assert [size_shown(count) for count in (1, 1536, 3 << 20, (1 << 30) + 1)] == [
        *("1 B", "1536 B", "3 MiB", "1073741825 B"),
    ]
    assert [time_shown(seconds) for seconds in (0.25, 90.0, 120.0, 5400.0, 172_800.0)] == [
        *("250ms", "90s", "2m", "90m", "2d"),
    ]


def test_defaults_as_help_gives_them_can_be_given() -> None:
    for name, parameter in inspect.signature(
        with_settings_flags(lambda _config, _flags: None)
    ).parameters.items():
        found = re.search(r"\[default: (.+)\]$", parameter.annotation.__metadata__[0].help)
        if found is not None and found[1] not in ("none", "never"):
            given = [found[1]] if name == "listen" else found[1]
            assert getattr(load_settings({name: given}, {}), name) == getattr(
                load_settings({}, {}), name
            ), name


def test_a_process_that_is_started_again_by_an_older_one_writes_what_that_reads() -> None:
    facts = MemberFacts(1, ["n-p0", "n-p1"], "data/p1", {}, 0, False, {})._asdict()
    assert MemberFacts(**facts).record_format == 1
    del facts["record_format"]  # as an older main process passes them
    assert MemberFacts(**facts).record_format == 1
    settings = load_settings({}, {})
    assert make_options(settings, "n", 1 << 20, record_format=1).record_format == 1


def test_a_process_of_a_node_with_several_logs_is_a_node_of_one_of_them() -> None:
    asked = {**PARTITIONED, "cluster_advertise": "10.0.0.1:7000", "metrics": "127.0.0.1:9000"}
    settings = load_settings(asked, {})
    facts = MemberFacts(1, ["c1-p0", "c1-p1"], "data/p1", {}, 0, True, {})
    found = member_settings(settings, facts)
    check_settings(found)
    assert (found.cluster, found.partitions, found.data_dir) == ("c1-p1", 1, Path("data/p1"))
    ports = [found.cluster_listen, found.cluster_advertise, found.metrics]
    assert list(map(str, ports)) == ["127.0.0.1:7884", "10.0.0.1:7001", "127.0.0.1:9002"]


def test_contradictions_and_files_that_cannot_be_read_are_named_together(tmp_path: Path) -> None:
    config = tmp_path / "foldmq.toml"
    config.write_text(
        'listen = ["127.0.0.1:1883", "tls://127.0.0.1:8883"]\n'
        f'password_file = "{tmp_path}/users"\njwt_keys = "{tmp_path}/keys"\n'
        'nats_creds = "/dev/null"\n'
    )
    with pytest.raises(ConfigError) as caught:
        run_config_check({}, config)
    assert caught.value.args == (
        (
            "listen = tls://127.0.0.1:8883: TLS needs tls_cert and tls_key, the certificate and "
            "its private key"
        ),
        "nats_creds also needs nats_url",
        f"password_file = {tmp_path}/users: cannot be read: No such file or directory",
        f"jwt_keys = {tmp_path}/keys: cannot be read: No such file or directory",
    )


def test_the_first_start_makes_the_file_with_the_keys_of_topics(tmp_path: Path) -> None:
    config = tmp_path / "foldmq.toml"
    text = f'data_dir = "{tmp_path}/data"\npersonal_topics = ["a/#"]\npersonal_key_file = "%s"\n'
    config.write_text(text % (tmp_path / "keys"))
    run_config_check({}, config)
    assert not (tmp_path / "keys").exists()
    config.write_text(text % (tmp_path / "none" / "keys"))
    with pytest.raises(ConfigError, match="none does not exist: create it"):
        run_config_check({}, config)


def test_a_check_names_the_destinations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "foldmq.toml"
    config.write_text(
        f'data_dir = "{tmp_path}/data"\n'
        '[sink.web]\nkind = "http"\nurl = "http://127.0.0.1:9/"\nfilters = ["a/#"]\n'
        '[connection.plant]\naddresses = ["127.0.0.1:9"]\ntopic = ["b/# out 1"]\n'
    )
    run_config_check({}, config)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["[sink.web]", "[connection.plant]"]
