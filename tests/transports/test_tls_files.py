"""Certificates, keys and revocation lists for TLS: valid ones, invalid ones, and the named user."""

import shutil
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from harness.certs import Authority
from structlog.testing import capture_logs

from actors.transports.peer import identity
from actors.transports.tls_context import TlsConfigError, TlsOptions, make_context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def good(authority: Authority) -> TlsOptions:
    server = authority.server()
    return TlsOptions(server.certificate, server.key)


def text(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_good_files(good: TlsOptions, authority: Authority) -> None:
    context = make_context(good)
    assert context.verify_mode == ssl.CERT_NONE
    asking = replace(
        good, client_certificates="required", client_ca=authority.file, crl=authority.revoke()
    )
    with capture_logs() as lines:
        context = make_context(asking)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF
    assert not lines


def test_key_and_certificate_in_one_file(good: TlsOptions, tmp_path: Path) -> None:
    assert good.key is not None
    both = text(tmp_path / "both.pem", good.certificate.read_bytes() + good.key.read_bytes())
    assert make_context(TlsOptions(both)).cert_store_stats()["x509"] == 0


def test_a_byte_order_mark_is_skipped(
    good: TlsOptions, authority: Authority, tmp_path: Path
) -> None:
    def marked(name: str, file: Path | None) -> Path:
        assert file is not None
        return text(tmp_path / name, b"\xef\xbb\xbf" + file.read_bytes())

    context = make_context(
        TlsOptions(
            marked("certificate", good.certificate),
            marked("key", good.key),
            client_certificates="required",
            client_ca=marked("authority", authority.file),
            crl=marked("crl", authority.revoke()),
        )
    )
    assert context.cert_store_stats() == {"x509": 1, "x509_ca": 1, "crl": 1}


def test_a_key_with_a_password(authority: Authority, tmp_path: Path) -> None:
    server = authority.server("locked")
    key = server.encrypted_key(b"open sesame")
    password = text(tmp_path / "password", b"open sesame\n")
    make_context(TlsOptions(server.certificate, key, password))
    wrong = text(tmp_path / "wrong", b"swordfish\n")
    with pytest.raises(TlsConfigError, match="its password is wrong"):
        make_context(TlsOptions(server.certificate, key, wrong))
    with pytest.raises(TlsConfigError, match="no password file is given"):
        make_context(TlsOptions(server.certificate, key))
    long = text(tmp_path / "long", b"x" * 5000)
    with pytest.raises(TlsConfigError, match="is too long"):
        make_context(TlsOptions(server.certificate, key, long))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda g, a, d: {"certificate": d / "gone"}, "TLS file {d}/gone: No such file"),
        (lambda g, a, d: {"certificate": d}, "TLS file {d}: Is a directory"),
        (lambda g, a, d: {"key": text(d / "k", b"nothing")}, "TLS file {d}/k: it is not PEM"),
        (lambda g, a, d: {"key": g.certificate}, ": there is no private key in it"),
        (lambda g, a, d: {"key": None}, ": there is no private key in it"),
        (lambda g, a, d: {"certificate": g.key}, ": there is no certificate in it"),
        (lambda g, a, d: {"key": a.server("other").key}, "it does not belong to the certificate"),
        (
            lambda g, a, d: {
                "certificate": text(
                    d / "c", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
                )
            },
            "TLS certificate {d}/c: a certificate in it is damaged",
        ),
        (
            lambda g, a, d: {"certificate": text(d / "c", g.certificate.read_bytes()[:200])},
            "TLS certificate {d}/c: a certificate in it is damaged",
        ),
        (
            lambda g, a, d: {
                "key": text(
                    d / "k", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
                )
            },
            "TLS key {d}/k: it is damaged, or OpenSSL does not support keys of this kind",
        ),
        (lambda g, a, d: {"certificate": d / "a\0b"}, "b: embedded null byte"),
        (lambda g, a, d: {"key_password_file": d / "a\0b"}, "b: embedded null byte"),
        (
            lambda g, a, d: {"ciphers": "ROT13"},
            "TLS ciphers 'ROT13': OpenSSL supports none of them",
        ),
        (lambda g, a, d: {"ciphers": "A\0"}, "TLS ciphers 'A\\x00': OpenSSL supports none of them"),
        (lambda g, a, d: {"client_certificates": "required"}, "no client_ca file is set"),
        (lambda g, a, d: {"client_ca": a.file}, "client certificates are off"),
        (
            lambda g, a, d: {"client_certificates": "optional", "client_ca": d / "none"},
            "TLS file {d}/none: No such file",
        ),
        (
            lambda g, a, d: {
                "client_certificates": "optional",
                "client_ca": a.file,
                "crl": a.file,
            },
            "there is no revocation list (X509 CRL) in it",
        ),
        (
            lambda g, a, d: {
                "client_certificates": "optional",
                "client_ca": a.file,
                "crl": text(d / "l", b"-----BEGIN X509 CRL-----\nAA==\n-----END X509 CRL-----\n"),
            },
            "TLS crl {d}/l: a revocation list in it is damaged",
        ),
        (
            lambda g, a, d: {"key_password_file": d / "none"},
            "TLS key password file {d}/none: No such file",
        ),
    ],
)
def test_bad_files(
    change: Any, said: str, good: TlsOptions, authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(TlsConfigError) as raised:
        make_context(replace(good, **change(good, authority, tmp_path)))
    assert said.format(d=tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 78


def test_files_are_read_once(good: TlsOptions, tmp_path: Path) -> None:
    """A context is unchanged when its files are replaced or removed."""
    assert good.key is not None
    certificate = shutil.copy(good.certificate, tmp_path)
    key = shutil.copy(good.key, tmp_path)
    context = make_context(TlsOptions(tmp_path / "server.pem", tmp_path / "server.key"))
    for file in (certificate, key):
        text(tmp_path / str(file), b"")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_side=True).do_handshake()


# ------------------------------------------------------------------ identity


def shown(**names: Any) -> dict[str, Any]:
    """A certificate as `ssl` describes it."""
    return {
        "subject": tuple(((name, value),) for name, value in names.items() if name != "san"),
        "subjectAltName": names.get("san", ()),
    }


@pytest.mark.parametrize(
    ("peercert", "kind", "user"),
    [
        (None, "cn", None),
        ({}, "dn", None),
        (shown(commonName="alice"), "cn", "alice"),
        (shown(commonName="al ice"), "cn", "al ice"),
        (shown(commonName="admin\0alice"), "cn", None),
        (shown(commonName="a\x1b[31m"), "cn", None),
        (shown(commonName="a\u202eb"), "cn", None),
        (shown(commonName=""), "cn", None),
        (shown(organizationName="x"), "cn", None),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, "cn", None),
        (shown(commonName="a", san=(("DNS", "device.example"),)), "dns", "device.example"),
        (shown(commonName="a", san=(("DNS", "a"), ("DNS", "b"))), "dns", None),
        (shown(commonName="a", san=(("email", "a@b.c"), ("DNS", "x"))), "email", "a@b.c"),
        (shown(commonName="a", san=(("URI", "spiffe://x/y"),)), "uri", "spiffe://x/y"),
        (shown(commonName="a"), "uri", None),
        (
            shown(countryName="DE", organizationName="Fold, Inc.", commonName="alice"),
            "dn",
            "CN=alice,O=Fold\\, Inc.,C=DE",
        ),
        (
            {"subject": ((("commonName", "a"), ("userId", "7")), (("serialNumber", "#1 "),))},
            "dn",
            "serialNumber=\\#1\\ ,CN=a+UID=7",
        ),
    ],
)
def test_identity(peercert: dict[str, Any] | None, kind: Any, user: str | None) -> None:
    assert identity(peercert, kind) == user


def test_identity_of_a_real_certificate(authority: Authority) -> None:
    names = [x509.DNSName("d.example"), x509.RFC822Name("a@b.c")]
    pair = authority.client("alice", stem="full", names=names, organisation="Fold")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pair.certificate)
    assert pair.x509.subject.rfc4514_string() == "CN=alice,O=Fold"
    described = ssl._ssl._test_decode_cert(str(pair.certificate))  # type: ignore[attr-defined]
    assert identity(described, "dn") == "CN=alice,O=Fold"
    assert identity(described, "cn") == "alice"
    assert identity(described, "dns") == "d.example"
    assert identity(described, "email") == "a@b.c"
