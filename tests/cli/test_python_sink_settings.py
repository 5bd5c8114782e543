"""The settings of sinks that are classes: what `config check` says of a class it cannot use."""

from pathlib import Path

import pytest

from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings, load_settings
from cli.settings.sink_settings import check_sink_files, outbox_request

pytestmark = pytest.mark.system

CLASSES = """
class Store:
    def __init__(self, path, table="t"): pass
    def send(self, messages): pass
class Nothing:
    pass
"""


def loaded(path: Path, *lines: str) -> Settings:
    (path / "sinks.py").write_text(CLASSES)
    (path / "broken.py").write_text("print('noise')\nimport not_there\n")
    (path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    config = path / "foldmq.toml"
    table = ["[sink.own]", 'kind = "python"', 'filters = ["a/#"]', *lines]
    config.write_text("\n".join(table))
    return load_settings({}, {}, config)


def test_a_class_that_can_be_used(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        *('target = "sinks:Store"', f'directory = "{tmp_path}"', 'options = {path = "/x"}'),
    )
    check_sink_files(settings)
    (sink,) = outbox_request(settings, "n")["sinks"]
    assert (sink["target"], sink["options"]) == ("sinks:Store", {"path": "/x"})
    assert (sink["memory"], sink["timeout"]) == (512 << 20, 30.0)


@pytest.mark.parametrize(
    ("target", "options", "reason"),
    [
        ("sinks:Store", "{}", "TypeError: missing a required argument: 'path'"),
        ("sinks:Store", "{path = 1, more = 2}", "unexpected keyword argument 'more'"),
        ("sinks:Nothing", "{}", "it has no method send"),
        ("sinks:Other", "{}", "AttributeError: module 'sinks' has no attribute 'Other'"),
        ("broken:Store", "{}", "ModuleNotFoundError: No module named 'not_there'"),
        ("leaves:Store", "{}", "SystemExit: 0"),
    ],
)
def test_a_class_that_cannot_be_used_is_one_line(
    tmp_path: Path, target: str, options: str, reason: str
) -> None:
    settings = loaded(
        tmp_path, f'target = "{target}"', f'directory = "{tmp_path}"', f"options = {options}"
    )
    with pytest.raises(ConfigError) as caught:
        check_sink_files(settings)
    (sentence,) = caught.value.args
    assert sentence.startswith(f'sink.own.target = "{target}": ')
    assert reason in sentence
    assert "\n" not in sentence


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    settings = loaded(tmp_path, 'target = "sinks:Store"', 'directory = "/not/there"')
    with pytest.raises(ConfigError, match="directory: No such file or directory"):
        check_sink_files(settings)


@pytest.mark.parametrize("target", ["sinks", "sinks.Store", "a-b:Store", "a/b.py:Store", ":S"])
def test_a_target_names_a_module_and_a_class(tmp_path: Path, target: str) -> None:
    with pytest.raises(ConfigError, match="must be module:Class, such as orders:Store"):
        loaded(tmp_path, f'target = "{target}"')
