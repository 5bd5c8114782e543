"""The tables [sink.NAME]: each mistake is one line that names the setting and says what to do."""

import base64
from pathlib import Path

import pytest
from harness.certs import Authority

from cli.serve.config_check import check_room
from cli.serve.limits_factory import make_options
from cli.serve.log_bound import LogBound
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings, load_settings
from cli.settings.sink_settings import check_sink_files, outbox_request

GOOD = 'kind = "http"\nurl = "https://erp.example/hook"\nfilters = ["orders/#"]\n'


def loaded(path: Path, *lines: str, table: str = "[sink.erp]", before: str = "") -> Settings:
    config = path / "foldmq.toml"
    given = {line.partition(" =")[0] for line in lines}
    kept = [line for line in GOOD.splitlines() if line.partition(" =")[0] not in given]
    written = [line for line in (*kept, *lines) if not line.endswith("= none")]
    config.write_text("\n".join([before, table, *written]))
    return load_settings({}, {}, config)


def test_defaults(tmp_path: Path) -> None:
    sink = loaded(tmp_path).sinks["erp"]
    assert (sink.batch, sink.batch_bytes, sink.batch_wait) == (200, 1 << 20, 0.005)
    assert (sink.retry, sink.begin, sink.when_full) == ((1.0, 300.0), "now", "skip")
    assert load_settings({}, {}).sinks == {}


def test_all_of_it_reaches_the_broker_and_the_process(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        *('from = "oldest"', 'retry = "2s 1m"', "batch = 7", 'batch_bytes = "2 MiB"'),
        *('max_behind = "30d"', 'max_behind_bytes = "9 GiB"', 'when_full = "wait"'),
    )
    (options,) = make_options(settings, "n", 1 << 20).destinations
    assert (options.name, options.kind, options.filters) == ("erp", "http", ("orders/#",))
    assert (options.begin, options.max_behind) == ("oldest", 30 * 86_400.0)
    assert (options.max_behind_bytes, options.when_full) == (9 << 30, "wait")
    request = outbox_request(settings, "n")
    (sink,) = request["sinks"]
    assert (sink["name"], sink["retry"], sink["batch"]) == ("erp", [2.0, 60.0], 7)
    assert (sink["batch_bytes"], request["node"]) == (2 << 20, "n")


def test_the_digest_changes_with_what_is_due(tmp_path: Path) -> None:
    digest = loaded(tmp_path).sinks["erp"].digest
    assert loaded(tmp_path, "batch = 7").sinks["erp"].digest == digest
    assert loaded(tmp_path, 'filters = ["a", "b"]').sinks["erp"].digest != digest
    swapped = [loaded(tmp_path, f"filters = {each}") for each in ('["a", "b"]', '["b", "a"]')]
    assert swapped[0].sinks["erp"].digest == swapped[1].sinks["erp"].digest


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("url = none", "sink.erp.url: is required"),
        ('url = "ftp://x"', 'sink.erp.url = "ftp://x": must be a URL that begins with https://'),
        ('url = "http://"', "must be a URL that begins with"),
        ('url = "http://u:p@h/"', "sink.erp.url: must not contain a password: use token_file"),
        (
            'kind = "other"',
            "sink.erp.kind = \"other\": must be 'http', 'kafka', 'otlp', 'postgres' or 'python'",
        ),
        ("kind = none", "sink.erp.kind: must be 'http', 'kafka', 'otlp', 'postgres' or 'python'"),
        ("kind = 5", "sink.erp.kind = 5: must be 'http', 'kafka', 'otlp', 'postgres' or 'python'"),
        ("filters = []", "sink.erp.filters = []: must be a list of 1 to 64 topic filters"),
        ('filters = "a"', "must be a list of 1 to 64 topic filters"),
        ('filters = ["a/#/b"]', "sink.erp.filters"),
        ('filters = ["$SYS/#"]', "$SYS/#: the log has no such messages"),
        ('filters = ["$share/g/a"]', "the log has no such messages"),
        ("batch = 0", "sink.erp.batch = 0: must be at least 1"),
        ('retry = "1s"', 'sink.erp.retry = "1s": must be two times, such as 1s 5m'),
        ("retry = 5", "sink.erp.retry = 5: must be two times, such as 1s 5m"),
        ('retry = "5m 1s"', "the first at least 10ms, the second at most 1h"),
        ('from = "tomorrow"', "sink.erp.from = \"tomorrow\": must be 'now' or 'oldest'"),
        ("parallel = 2", "sink.erp.parallel: unknown setting; known: kind, filters"),
        ('when_full = "drop"', "must be 'skip' or 'wait'"),
        ('user = "u"', "sink.erp.user needs permissions"),
        ('max_behind = "30d"', "max_behind is longer than keep, and needs max_behind_bytes"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, line)
    (sentence,) = caught.value.args
    assert said in sentence
    assert "\n" not in sentence


OTLP = ('kind = "otlp"', 'url = "http://collector:4318"')


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ratio = 2", "sink.erp.ratio = 2: must be at most 1"),
        ('always = ["late"]', "must be 'dropped', 'redelivered' or 'slow'"),
        ('always = "dropped"', 'sink.erp.always = "dropped": must be a list of outcomes'),
        ('templates = ["a/#/b"]', "sink.erp.templates"),
        ('slow = "1h"', "sink.erp.slow"),
        ('format = "batch"', "sink.erp.format: unknown setting"),
        ('encoding = "grpc"', "sink.erp.encoding = \"grpc\": must be 'json' or 'protobuf'"),
        ('metrics = "2h"', "sink.erp.metrics"),
        ("url = none", "sink.erp.url: is required"),
    ],
)
def test_a_mistake_in_traces_is_one_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, *{each.partition(" =")[0]: each for each in (*OTLP, line)}.values())
    (sentence,) = caught.value.args
    assert said in sentence


POSTGRES = ('kind = "postgres"', 'url = "postgresql://foldmq@db.example/telemetry"')


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('url = "https://db/x"', "must be a URL such as postgresql://user@host/database"),
        ('url = "postgresql://db"', "must be a URL such as postgresql://user@host/database"),
        ('url = "postgresql://db:x/y"', "must be a URL such as postgresql://user@host/database"),
        ('url = "postgresql://u:p@db/x"', "sink.erp.url: must not contain a password: use pass"),
        ('url = "postgresql://db/x?password=p"', "sink.erp.url: must not contain a password"),
        ('table = "a; drop"', "must be the name of a table"),
        ('password_file = "/not/there"', "cannot read: No such file"),
    ],
)
def test_a_mistake_in_a_database_is_one_line(tmp_path: Path, line: str, said: str) -> None:
    given = {each.partition(" =")[0]: each for each in (*POSTGRES, line)}
    with pytest.raises(ConfigError) as caught:
        check_sink_files(loaded(tmp_path, *given.values()))
    (sentence,) = caught.value.args
    assert said in sentence


KAFKA = ('kind = "kafka"', 'servers = ["k:9092"]', 'topic = "mqtt"')


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("servers = []", "sink.erp.servers = []: must be a list of 1 to 64 host:port"),
        ('topic = "a b"', 'sink.erp.topic = "a b": must be 1 to 249 letters'),
        ('options = {"a.b" = 1}', 'sink.erp.options: No such configuration property: "a.b"'),
        ('options = {"sasl.password" = "hunter2"}', "contain sasl.password: use password_file"),
        ('options = {"ssl.key.pem" = "hunter2"}', "contain ssl.key.pem: use ssl.key.location"),
        ('options = {"acks" = "no"}', "sink.erp.options: Invalid value"),
        ('options = "x"', 'sink.erp.options = "x": must be a table'),
        ("options = {sasl = {a = 1}}", "sink.erp.options: sasl must be text or a number"),
    ],
)
def test_a_mistake_in_kafka_is_one_line(tmp_path: Path, line: str, said: str) -> None:
    given = {each.partition(" =")[0]: each for each in (*KAFKA, line)}
    with pytest.raises(ConfigError) as caught:
        check_sink_files(loaded(tmp_path, *given.values(), "url = none"))
    (sentence,) = caught.value.args
    assert said in sentence
    assert "hunter2" not in sentence


def test_kafka_with_a_user_and_the_file_of_its_password(tmp_path: Path) -> None:
    word = tmp_path / "password"
    word.write_text("secret")
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    table = ", ".join(f'"{key}" = "{value}"' for key, value in options.items())
    lines = (*KAFKA, f"options = {{{table}}}", "url = none")
    with pytest.raises(ConfigError, match=r"sasl\.username and sasl\.password must be set"):
        check_sink_files(loaded(tmp_path, *lines))
    check_sink_files(loaded(tmp_path, *lines, f'password_file = "{word}"'))


def test_packages_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = loaded(tmp_path, *POSTGRES)
    check_sink_files(settings)
    monkeypatch.setattr("cli.settings.sink_settings.find_spec", lambda _name: None)
    with pytest.raises(ConfigError) as caught:
        check_sink_files(settings)
    (sentence,) = caught.value.args
    assert 'sink.erp.kind = "postgres": needs more packages: ' in sentence
    assert "-m pip install asyncpg" in sentence.replace("'", "")


def test_traces_are_of_all_messages(tmp_path: Path) -> None:
    sink = loaded(tmp_path, *OTLP, "filters = none").sinks["erp"]
    assert (sink.kind, sink.filters) == ("otlp", ("#",))


def test_bounds_that_would_fill_the_disk_are_refused(tmp_path: Path) -> None:
    unbounded = "keep_bytes = 0"
    with pytest.raises(ConfigError, match="needs max_behind_bytes"):
        loaded(tmp_path, 'max_behind = "30d"', before=unbounded)
    with pytest.raises(ConfigError, match="needs keep_bytes"):
        loaded(tmp_path, 'when_full = "wait"', before=unbounded)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[sink.'a b']", "sink.a b: a name has 1 to 64 letters, digits, - and _"),
        ("[sink]", "sink: must be tables, such as [sink.NAME]"),
        ("[[sink]]", "sink: must be tables, such as [sink.NAME]"),
        ("[sinks.a]", 'unknown setting "sinks"'),
    ],
)
def test_tables_with_wrong_names(tmp_path: Path, table: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, table=table)
    assert said in caught.value.args[0]


def test_a_sink_is_no_variable_of_the_environment() -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        load_settings({}, {"FOLDMQ_SINK": "x"})


def test_files_are_checked_before_the_start(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    settings = loaded(tmp_path, f"signing_secret_file = '{secret}'")
    with pytest.raises(ConfigError, match="cannot read: No such file"):
        check_sink_files(settings)
    secret.write_text("whsec_short\n")
    with pytest.raises(ConfigError, match="a secret must be whsec_ and"):
        check_sink_files(settings)
    secret.write_text("whsec_" + base64.b64encode(bytes(32)).decode())
    check_sink_files(settings)
    token = tmp_path / "token"
    for text in (" \n", "a\nb\n", "tök"):
        token.write_text(text)
        with pytest.raises(ConfigError, match="must have one line with a token"):
            check_sink_files(loaded(tmp_path, f"token_file = '{token}'"))
    with pytest.raises(ConfigError, match="has no certificates in PEM"):
        check_sink_files(loaded(tmp_path, f"ca_file = '{token}'"))


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    secret = "whsec_" + base64.b64encode(bytes(32)).decode()
    files = {
        "signing_secret_file": secret,
        "token_file": "t0ken",
        "ca_file": Authority(tmp_path / "ca").file.read_text(),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(f"\ufeff{content}\n", "utf-8")
    lines = [f"{name} = '{tmp_path / name}'" for name in files]
    check_sink_files(loaded(tmp_path, *lines))


@pytest.mark.parametrize(("allowed", "warned"), [(1 << 30, True), (1 << 40, False), (0, False)])
def test_a_bound_that_the_log_never_reaches_is_a_warning(
    allowed: int, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = loaded(tmp_path, 'max_behind_bytes = "50 GiB"')
    check_room(settings, None, LogBound(allowed, "keep_bytes"))
    assert ("max_behind_bytes is 50.0 GiB, but keep_bytes allows" in capsys.readouterr().err) == (
        warned
    )
