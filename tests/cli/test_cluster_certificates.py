"""The certificates of nodes: checked at the start, and compared with those of other nodes."""

from pathlib import Path

import pytest
from harness.certs import Authority, Pair

from cli.serve.edge_factory import cluster_authorities
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings


def settings(pair: Pair, authority: Authority) -> Settings:
    return Settings(
        cluster_tls_cert=pair.certificate,
        cluster_tls_key=pair.key,
        cluster_tls_ca=authority.file,
    )


def test_authorities_are_distinguished_by_digests(tmp_path: Path) -> None:
    one, two = (Authority(tmp_path / name, name) for name in ("one", "two"))
    found = [cluster_authorities(settings(made.node("node"), made)) for made in (one, two)]
    assert all(found)
    assert found[0] != found[1]
    assert cluster_authorities(settings(one.node("other"), one)) == found[0]
    assert not cluster_authorities(Settings())
    one.file.write_bytes(one.file.read_bytes() + two.file.read_bytes())
    both = cluster_authorities(settings(one.node("node"), one))
    assert sorted(both.split(",")) == sorted(found)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    """Its node would start, and the clients that it passes on would wait for ever."""
    one, two = (Authority(tmp_path / name, name) for name in ("one", "two"))
    with pytest.raises(ConfigError, match="other nodes would not accept it"):
        cluster_authorities(settings(one.node("node"), two))


def test_a_certificate_that_is_only_a_servers_is_refused(tmp_path: Path) -> None:
    one = Authority(tmp_path)
    with pytest.raises(ConfigError, match="other nodes would not accept it"):
        cluster_authorities(settings(one.server(), one))
