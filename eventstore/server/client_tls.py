"""TLS of the NATS server for NATS clients, and of the bridge's connection to it.

Where clients must present a certificate, the bridge presents its own: it is generated at each
start, and the server trusts it beside the authorities of the clients' certificates.
"""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from eventstore.edited_files import has_mark
from eventstore.errors import BadNatsOptions

if TYPE_CHECKING:
    from pathlib import Path

    from eventstore.datadir import DataDir

TRUSTED: Final = "trusted.pem"
"""Authorities of the clients' certificates, and the bridge's certificate."""
BRIDGE: Final = "bridge.pem"
"""The bridge's certificate and its private key."""
SERVER: Final = "server.pem"
SERVER_KEY: Final = "server-key.pem"
"""Copies of the server's certificate and key, if these begin with a byte order mark."""

_HANDSHAKE_SECONDS: Final = 5
_DAY: Final = dt.timedelta(days=1)
_LIFE: Final = 3650 * _DAY
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files for the server's TLS, all in PEM form."""

    certificate: Path
    """The server's certificate, followed by the chain to its authority."""
    key: Path
    client_ca: Path | None = None
    """Authorities of client certificates, which are then required; None: none are requested."""


class ClientServerTls:
    """The server's TLS, with its files in ``datadir``, and the TLS of the bridge's connection."""

    def __init__(self, tls: TlsFiles, datadir: DataDir) -> None:
        self._tls = tls
        self._datadir = datadir
        self._bridges: tuple[str, str] | None = None
        self._files = (tls.certificate, tls.key)

    def prepare(self) -> None:
        """Write the files that the server cannot use as they are.

        These are files with a byte order mark, and the authorities of the clients, if these must
        present a certificate. Raises BadNatsOptions when a file cannot be read.
        """
        self._files = (
            self._unmarked(self._tls.certificate, SERVER),
            self._unmarked(self._tls.key, SERVER_KEY),
        )
        if self._tls.client_ca is not None:
            trusted = _read(self._tls.client_ca)
            self._bridges = self._bridges or _made()
            certificate, key = self._bridges
            self._datadir.write_private(self._datadir.path / TRUSTED, f"{trusted}\n{certificate}")
            self._datadir.write_private(self._datadir.path / BRIDGE, certificate + key)

    def configuration(self) -> dict[str, object]:
        """Return the TLS section of the server's configuration."""
        tls: dict[str, object] = {
            "cert_file": str(self._files[0].absolute()),
            "key_file": str(self._files[1].absolute()),
            "timeout": _HANDSHAKE_SECONDS,
        }
        if self._tls.client_ca is not None:
            tls |= {"ca_file": str(self._datadir.path / TRUSTED), "verify": True}
        return {"tls": tls}

    def _unmarked(self, file: Path, name: str) -> Path:
        """Return a file, or a copy of it without its byte order mark."""
        try:
            if not has_mark(file):
                return file
        except OSError as error:
            raise BadNatsOptions(f"cannot read {file}: {error.strerror}") from None
        self._datadir.write_private(self._datadir.path / name, _read(file))
        return self._datadir.path / name

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for connections to the server."""
        return bridge_context(self.bridge_certificate)

    @property
    def bridge_certificate(self) -> Path | None:
        """The certificate and key that connections to the server present; None: they need none."""
        return self._datadir.path / BRIDGE if self._tls.client_ca is not None else None


def bridge_context(certificate: Path | None) -> ssl.SSLContext:
    """Return the TLS context for connections to the server, with a certificate to present.

    The server is a child process at an address of this machine, which its certificate need not
    contain.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig", errors="replace")
    except OSError as error:
        raise BadNatsOptions(f"cannot read {file}: {error.strerror}") from None


def _made() -> tuple[str, str]:
    """Return a self-signed certificate and its private key (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "foldmq bridge")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(_PEM).decode(), private.decode()
