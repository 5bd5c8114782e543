"""The tables [sink.NAME]: each mistake is one line that names the setting and says what to do."""

import base64
from pathlib import Path

import pytest

from cli.serve.limits_factory import make_options
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
        ('url = "http://u:p@h/"', "must not contain a password: use token_file"),
        ('kind = "kafka"', "sink.erp.kind = \"kafka\": must be 'http'"),
        ("filters = []", "sink.erp.filters = []: must be a list of 1 to 64 topic filters"),
        ('filters = "a"', "must be a list of 1 to 64 topic filters"),
        ('filters = ["a/#/b"]', "sink.erp.filters"),
        ('filters = ["$SYS/#"]', "$SYS/#: the log has no such messages"),
        ('filters = ["$share/g/a"]', "the log has no such messages"),
        ("batch = 0", "sink.erp.batch = 0: must be at least 1"),
        ('retry = "1s"', 'sink.erp.retry = "1s": must be two times, such as 1s 5m'),
        ('retry = "5m 1s"', "the first at least 10ms, the second at most 1h"),
        ('from = "tomorrow"', "sink.erp.from = \"tomorrow\": must be 'now' or 'oldest'"),
        ("parallel = 2", "sink.erp.parallel: unknown setting; known: kind, url"),
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
    token.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        check_sink_files(loaded(tmp_path, f"token_file = '{token}'"))
