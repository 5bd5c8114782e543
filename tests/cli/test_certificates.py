"""Certificates and credentials with an end: what is read of them, and what is said about it."""

import base64
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from harness import forkserver
from harness.broker import environment
from harness.certs import Authority, Pair

from actors.inspection.status_metrics import METRICS
from cli.commands.advice import Advice
from cli.commands.certificate_advice import advise_on_certificates
from cli.serve.certificates import read_certificates, with_files
from cli.serve.edge_factory import cluster_authorities
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings, load_settings

DAY_MS = 86_400_000


def now_ms(days: float = 0) -> int:
    return int(dt.datetime.now(dt.UTC).timestamp() * 1000 + days * DAY_MS)


def of(settings: Settings, days: float = 0) -> list[Advice]:
    """What is said about the files of these settings in so many days."""
    rows = read_certificates(settings)
    return [*advise_on_certificates([{"certificates": rows, "time_ms": now_ms(days)}])]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def tls(authority: Authority, *, expired: bool = False, **others: Any) -> Settings:
    server = authority.server(expired=expired)
    flags = {
        "listen": ["tls://127.0.0.1:8883", "wss://127.0.0.1:8443", "127.0.0.1:1883"],
        "tls_cert": str(server.certificate),
        "tls_key": str(server.key),
        "allow_anonymous": True,
        **others,
    }
    return load_settings(flags, {})


def test_a_certificate_of_listeners(authority: Authority) -> None:
    settings = tls(authority)  # valid for 9 more days
    (soon,) = of(settings)
    assert (soon.severity, soon.title) == ("warning", "expires soon")
    assert soon.subject == "the certificate of tls://127.0.0.1:8883, wss://127.0.0.1:8443"
    assert soon.evidence.startswith("CN=localhost: it ends in 8 d")
    assert "from then on clients refuse to connect" in soon.evidence
    assert str(settings.tls_cert) in soon.cause
    assert soon.next == "foldmq reload"
    assert of(settings, -21.5) == [] or of(settings, -21.5)[0].title == "is not valid yet"
    (over,) = of(settings, 9.5)
    assert (over.severity, over.title) == ("problem", "has expired")
    assert "; clients refuse to connect" in over.evidence
    (early,) = of(settings, -2)
    assert (early.severity, early.title) == ("problem", "is not valid yet")
    assert early.cause.startswith("it was replaced too early, or the clock is wrong: replace ")


def row(**others: Any) -> dict[str, Any]:
    days = {"begins_ms": now_ms(-60), "ends_ms": now_ms(60), "first_ms": now_ms(60)}
    return {
        "setting": "tls_cert",
        "listener": "",
        "file": "/etc/x.pem",
        "name": "CN=x",
        "first_name": "CN=x",
        "lasts_ms": 120 * DAY_MS,
        **days,
        **others,
    }


@pytest.mark.parametrize(
    ("values", "days", "severity"),
    [
        ({}, 0, None),
        ({}, 29.9, None),
        ({}, 30.1, "warning"),
        ({}, 59.9, "warning"),
        ({}, 60.1, "problem"),
        ({}, -60.1, "problem"),
        ({"setting": "jwt_keys"}, 60.1, "warning"),
        ({"setting": "tls_crl", "lasts_ms": 8 * DAY_MS}, 57.9, None),
        ({"setting": "tls_crl", "lasts_ms": 8 * DAY_MS}, 58.1, "warning"),
        ({"setting": "tls_crl", "lasts_ms": 8 * DAY_MS}, 60.1, "problem"),
        ({"setting": "tls_client_ca", "first_ms": now_ms(-1)}, 0, "warning"),
    ],
)
def test_when_it_is_reported(values: dict[str, Any], days: float, severity: str | None) -> None:
    found = [*advise_on_certificates([{"certificates": [row(**values)], "time_ms": now_ms(days)}])]
    assert [one.severity for one in found] == ([] if severity is None else [severity])


def test_brokers_that_share_a_file_report_it_once() -> None:
    status = {"certificates": [row(listener="tls://a:1")], "time_ms": now_ms(61)}
    assert len([*advise_on_certificates([status, status])]) == 1
    assert [*advise_on_certificates([{"time_ms": 0}, {"certificates": None, "time_ms": 0}])] == []


def test_a_file_that_was_replaced_without_a_reload(authority: Authority) -> None:
    loaded = read_certificates(tls(authority, expired=True))
    rows = with_files(loaded, read_certificates(tls(authority)))
    (one,) = advise_on_certificates([{"certificates": rows, "time_ms": now_ms()}])
    assert (one.severity, one.title) == ("problem", "has expired")
    assert one.cause.startswith("the file has a newer one, until ")


def test_authorities_and_revocation_lists(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", "another authority")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.file.read_bytes() + other.file.read_bytes())
    settings = tls(
        authority,
        tls_client_certs="required",
        tls_client_ca=str(both),
        tls_crl=str(authority.revoke(expired=True)),
    )
    rows = {one["setting"]: one for one in read_certificates(settings)}
    assert set(rows) == {"tls_cert", "tls_client_ca", "tls_crl"}
    assert rows["tls_client_ca"]["name"] == "CN=another authority"
    assert rows["tls_client_ca"]["first_name"] == "CN=foldmq tests"
    found = {one.subject.split(" of tls:")[0]: one for one in of(settings)}
    crl = found["the certificate revocation list"]
    assert (crl.severity, crl.title) == ("problem", "has expired")
    assert "clients with a certificate of its issuer are refused" in crl.evidence


def test_the_root_behind_a_chain_does_not_count(authority: Authority, tmp_path: Path) -> None:
    server, root = authority.server(), authority.server("root", expired=True)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(server.certificate.read_bytes() + authority.file.read_bytes())
    settings = tls(authority, tls_cert=str(chain))
    (first, *_) = read_certificates(settings)
    assert first["name"] == "CN=localhost"
    chain.write_bytes(server.certificate.read_bytes() + root.certificate.read_bytes())
    assert of(settings)[0].title == "has expired"


def test_keys_of_tokens(authority: Authority, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    server = authority.server("issuer", expired=True)
    der = base64.b64encode(server.x509.public_bytes(Encoding.DER)).decode()
    for content in (
        server.certificate.read_bytes(),
        json.dumps({"keys": [{"kid": "a", "x5c": [der]}]}).encode(),
        json.dumps({"keys": [{"kid": "a", "exp": now_ms(-1) // 1000}, {"kid": "b"}]}).encode(),
    ):
        keys.write_bytes(content)
        (one,) = of(load_settings({"jwt_keys": str(keys)}, {}))
        assert (one.severity, one.title) == ("warning", "has expired")
        assert "tokens signed with it are still accepted" in one.evidence
    keys.write_text('{"keys": [{"kid": "b"}]}')
    assert of(load_settings({"jwt_keys": str(keys)}, {})) == []


def test_credentials_of_nats(tmp_path: Path) -> None:
    file = tmp_path / "my.creds"
    settings = load_settings({"nats_creds": str(file), "nats_url": "nats://127.0.0.1:4222"}, {})
    for days, expected in ((-1, ["problem"]), (2, ["warning"]), (50, []), (None, [])):
        claims: dict[str, Any] = {"name": "broker", "iat": now_ms(-100) // 1000}
        if days is not None:
            claims["exp"] = now_ms(days) // 1000
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        file.write_text(f"-----BEGIN NATS USER JWT-----\ne30.{body}.c2ln\n------END NATS USER JWT")
        found = of(settings)
        assert [one.severity for one in found] == expected
        assert all(one.next == "foldmq config check" for one in found)


def test_files_that_cannot_be_read_have_no_row(authority: Authority, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    settings = tls(authority, tls_cert=str(broken))
    assert read_certificates(settings) == []
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert read_certificates(settings) == []
    broken.write_text("nothing")
    assert read_certificates(settings) == []


def test_the_metric(authority: Authority) -> None:
    rows = read_certificates(tls(authority))
    name = "foldmq_certificate_expiry_timestamp_seconds"
    (metric,) = [one for one in METRICS if one.name == name]
    reading = metric.reading({"certificates": rows})
    assert set(reading) == {
        ("tls_cert", "tls://127.0.0.1:8883"),
        ("tls_cert", "wss://127.0.0.1:8443"),
    }
    assert all(now_ms(8) < end * 1000 < now_ms(10) for end in reading.values())


@pytest.mark.system
@pytest.mark.parametrize("expired", [True, False])
def test_config_check(authority: Authority, tmp_path: Path, expired: bool) -> None:
    settings = tls(authority, expired=expired)
    arguments = ["config", "check", "--data-dir", str(tmp_path / "data")]
    arguments += ["--listen", "tls://127.0.0.1:8883", "--allow-anonymous"]
    arguments += ["--tls-cert", str(settings.tls_cert), "--tls-key", str(settings.tls_key)]
    code, out, err = forkserver.run(arguments, environment(), 60)
    said = err.decode()
    assert code == (78 if expired else 0)
    assert ("has expired" if expired else "warning: the certificate of tls://") in said
    assert (b"is valid" in out) is not expired


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
