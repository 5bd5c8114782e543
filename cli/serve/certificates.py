"""The certificates and other credentials with an end in the files that the settings name.

Each is a row for the status, the metrics, the log and ``foldmq doctor``; what a row means is in
:mod:`cli.commands.certificate_advice`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog
from cryptography import x509

from cli.commands.certificate_advice import advise_on_certificates
from eventstore.edited_files import skip_mark

if TYPE_CHECKING:
    import datetime as dt

    from actors.session.node_context import NodeContext
    from cli.serve.cluster_member import ClusterMember
    from cli.settings.settings import Settings

_log = structlog.get_logger("foldmq")
_HOUR_SECONDS: Final = 3600.0

_PEM_BLOCK: Final = re.compile(
    rb"-----BEGIN (CERTIFICATE|X509 CRL)-----.*?-----END \1-----", re.DOTALL
)
_USER_JWT: Final = re.compile(r"BEGIN NATS USER JWT-+\s*([\w-]+)\.([\w-]+)\.")


class _Span(NamedTuple):
    """The time in which one certificate, list or token is valid, in Unix milliseconds."""

    name: str
    begins_ms: int
    ends_ms: int


def read_certificates(settings: Settings) -> list[dict[str, Any]]:
    """Return a row for each file with something that ends.

    ``ends_ms`` is the time from which the file is of no use: the end of the first certificate of a
    chain, but of the last of several authorities; ``first_ms`` is the end of the first of them. A
    file that cannot be read, which a start or reload refuses, has none.
    """
    rows = []
    for setting, listener, file in _files(settings):
        spans = _spans(setting, file)
        if not spans:
            continue
        by_end = sorted(spans, key=lambda span: span.ends_ms)
        several = setting.endswith("_ca")
        decisive = by_end[-1] if several else by_end[0]
        begins = [span.begins_ms for span in spans]
        rows.append(
            {
                "setting": setting,
                "listener": listener,
                "file": str(file),
                "name": decisive.name,
                "begins_ms": min(begins) if several else max(begins),
                "ends_ms": decisive.ends_ms,
                "first_name": by_end[0].name,
                "first_ms": by_end[0].ends_ms,
                "lasts_ms": decisive.ends_ms - decisive.begins_ms,
            }
        )
    return rows


class CertificateWatch:
    """Looks at the files, and logs what has expired or will soon, if it ``logs``."""

    def __init__(self, *, logs: bool) -> None:
        self._logs = logs
        self._logged: set[tuple[str, str]] = set()

    async def look(self, settings: Settings) -> list[dict[str, Any]]:
        """Return what the files have now, for the status."""
        rows = await asyncio.to_thread(read_certificates, settings)
        self._log(rows)
        return rows

    async def watch(
        self, holder: ClusterMember | NodeContext, settings: Callable[[], Settings]
    ) -> None:
        """Look at the files once an hour: they may end, or be replaced without a reload."""
        while True:
            await asyncio.sleep(_HOUR_SECONDS)
            rows = await asyncio.to_thread(read_certificates, settings())
            holder.certificates = with_files(holder.certificates, rows)
            self._log(holder.certificates)

    def _log(self, rows: list[dict[str, Any]]) -> None:
        if not self._logs:
            return
        status = {"certificates": rows, "time_ms": time.time_ns() // 1_000_000}
        advice = {(each.subject, each.title): each for each in advise_on_certificates([status])}
        for title, each in advice.items():
            if title in self._logged:
                continue
            write = _log.error if each.severity == "problem" else _log.warning
            write(" ".join(title), evidence=each.evidence, remedy=each.cause)
        self._logged = {*advice}


def with_files(
    loaded: Iterable[dict[str, Any]], current: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of what is in use; each with the end of what its file has now."""
    ends = {(row["setting"], row["listener"], row["file"]): row["ends_ms"] for row in current}
    return [
        row | {"file_ends_ms": ends.get((row["setting"], row["listener"], row["file"]))}
        for row in loaded
    ]


def _files(settings: Settings) -> Iterator[tuple[str, str, Path]]:
    """Yield the setting, the listener ("" if it is not of one) and the path of each file."""
    for own in settings.listeners():
        (place,) = own.listen
        if not place.endpoint.encrypted:
            continue
        names = ["tls_cert"]
        if own.tls_client_certs != "none":
            names += ["tls_client_ca", "tls_crl"]
        for name in names:
            file = getattr(own, name)
            if file is not None:
                yield name, str(place), file
    for name in (
        "jwt_keys",
        "nats_ca",
        "nats_cert",
        "nats_creds",
        "bridge_creds",
        "nats_tls_cert",
        "nats_tls_client_ca",
        "cluster_tls_cert",
        "cluster_tls_ca",
    ):
        file = getattr(settings, name)
        if file is not None:
            yield name, "", file


def _spans(setting: str, file: Path) -> list[_Span]:
    read: Callable[[bytes], list[_Span]] = _certificates
    if setting.endswith("_cert"):
        read = _chain
    elif setting == "tls_crl":
        read = _revocation_lists
    elif setting == "jwt_keys":
        read = _token_keys
    elif setting.endswith("_creds"):
        read = _nats_credentials
    try:
        return read(skip_mark(file.read_bytes()))
    except (OSError, ValueError, OverflowError):
        return []


def _certificates(data: bytes) -> list[_Span]:
    return [_span(certificate) for certificate in _x509(data)]


def _chain(data: bytes) -> list[_Span]:
    """Return the certificates that clients check: not the root that ends the chain."""
    first, *others = _x509(data)
    return [
        _span(certificate)
        for certificate in (first, *(other for other in others if other.subject != other.issuer))
    ]


def _x509(data: bytes) -> list[x509.Certificate]:
    return [
        x509.load_pem_x509_certificate(block[0])
        for block in _PEM_BLOCK.finditer(data)
        if block[1] == b"CERTIFICATE"
    ]


def _span(certificate: x509.Certificate) -> _Span:
    return _Span(
        certificate.subject.rfc4514_string(),
        _ms(certificate.not_valid_before_utc),
        _ms(certificate.not_valid_after_utc),
    )


def _revocation_lists(data: bytes) -> list[_Span]:
    """Return the latest list of each issuer."""
    latest: dict[str, _Span] = {}
    for block in _PEM_BLOCK.finditer(data):
        if block[1] != b"X509 CRL":
            continue
        revocations = x509.load_pem_x509_crl(block[0])
        if revocations.next_update_utc is None:
            continue
        name = revocations.issuer.rfc4514_string()
        span = _Span(name, _ms(revocations.last_update_utc), _ms(revocations.next_update_utc))
        if name not in latest or latest[name].ends_ms < span.ends_ms:
            latest[name] = span
    return [*latest.values()]


def _token_keys(data: bytes) -> list[_Span]:
    if not data.lstrip().startswith(b"{"):
        return _certificates(data)
    spans = []
    for key in json.loads(data).get("keys", ()):
        name = str(key.get("kid", "a key without kid"))
        if isinstance(key.get("exp"), int | float):
            begins = key.get("nbf") or key.get("iat") or 0
            spans.append(_Span(name, int(begins * 1000), int(key["exp"] * 1000)))
        if chain := key.get("x5c"):
            spans.append(_span(x509.load_der_x509_certificate(base64.b64decode(chain[0]))))
    return spans


def _nats_credentials(data: bytes) -> list[_Span]:
    match = _USER_JWT.search(data.decode("utf-8", "replace"))
    if match is None:
        return []
    try:
        claims = json.loads(base64.urlsafe_b64decode(match[2] + "=" * (-len(match[2]) % 4)))
    except binascii.Error:
        return []
    if not claims.get("exp"):
        return []
    name = str(claims.get("name") or claims.get("sub") or "")
    return [_Span(name, int(claims.get("iat") or 0) * 1000, int(claims["exp"]) * 1000)]


def _ms(time: dt.datetime) -> int:
    return int(time.timestamp() * 1000)
