"""The TLS context of a listener: certificates, keys, authorities, revocation lists."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cryptography import x509

from eventstore.edited_files import skip_mark, unmarked_copy, unmarked_pair
from protocol.errors import FoldmqError

ClientCertificates = Literal["off", "optional", "required"]
Version = Literal["1.2", "1.3"]

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    "off": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class TlsConfigError(FoldmqError):
    """An invalid file or setting for TLS; the message names the file and the error."""

    exit_code = 78


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS options of a listener; all files are PEM."""

    certificate: Path
    """The server's certificate, followed by its chain."""
    key: Path | None = None
    """The private key; None: it is in the same file."""
    key_password_file: Path | None = None
    """File with the passphrase of the key in its first line."""
    client_certificates: ClientCertificates = "off"
    client_ca: Path | None = None
    """Certificate authorities for client certificates."""
    crl: Path | None = None
    """Certificate revocation lists of these authorities."""
    minimum_version: Version = "1.2"
    ciphers: str | None = None
    """Cipher suites of TLS 1.2 in OpenSSL's syntax; None: OpenSSL's default."""


def make_context(options: TlsOptions) -> ssl.SSLContext:
    """Return the context for a listener; raises TlsConfigError.

    Each reload creates a new context with new session tickets, so that no client resumes a session
    of older certificates, authorities or revocation lists.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.minimum_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if options.ciphers is not None:
        try:
            context.set_ciphers(options.ciphers)
        except (ssl.SSLError, ValueError):
            raise TlsConfigError(
                f"TLS ciphers {options.ciphers!r}: OpenSSL supports none of them"
            ) from None
    _load_certificate(context, options)
    if options.client_certificates != "off":
        _load_authorities(context, options)
        context.verify_mode = _VERIFY[options.client_certificates]
    elif options.client_ca is not None or options.crl is not None:
        file = options.client_ca or options.crl
        raise TlsConfigError(f"{file}: client certificates are off, so it would not be used")
    return context


def _load_certificate(context: ssl.SSLContext, options: TlsOptions) -> None:
    certificate, key = options.certificate, options.key or options.certificate
    _certificates(certificate)
    if b"PRIVATE KEY-----" not in _pem(key):
        raise TlsConfigError(f"TLS key {key}: there is no private key in it")
    password = _password(options.key_password_file)

    def ask() -> bytes:
        if password is None:
            raise TlsConfigError(f"TLS key {key}: it is encrypted and no password file is given")
        return password

    try:
        with unmarked_pair(certificate, key) as (first_file, key_file):
            context.load_cert_chain(first_file, key_file, ask)
    except ssl.SSLError as error:
        if password is not None and error.reason in (None, "BAD_DECRYPT"):
            raise TlsConfigError(f"TLS key {key}: its password is wrong") from None
        raise TlsConfigError(f"TLS key {key}: {_why(error, certificate)}") from None
    except ValueError:
        raise TlsConfigError(
            f"TLS key {key}: the password in {options.key_password_file} is too long"
        ) from None


def _why(error: ssl.SSLError, certificate: Path) -> str:
    """Return why a key was rejected, in words."""
    reason: str | None = error.reason
    match reason:
        case None:
            return "it is damaged, or OpenSSL does not support keys of this kind"
        case "KEY_VALUES_MISMATCH" | "KEY_TYPE_MISMATCH":
            return f"it does not belong to the certificate {certificate}"
        case "EE_KEY_TOO_SMALL" | "CA_KEY_TOO_SMALL" | "CA_MD_TOO_WEAK":
            return f"the certificate {certificate} is too weak: {_lower(reason)}"
    return f"OpenSSL does not accept it together with {certificate}: {_lower(reason)}"


def _lower(reason: str) -> str:
    return reason.lower().replace("_", " ")


def _load_authorities(context: ssl.SSLContext, options: TlsOptions) -> None:
    if options.client_ca is None:
        raise TlsConfigError(
            "TLS client certificates are requested, but no client_ca file is set to verify them"
        )
    _certificates(options.client_ca)
    try:
        with unmarked_copy(options.client_ca) as authorities:
            context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        reason = f"OpenSSL does not accept it: {_lower(error.reason or 'it is damaged')}"
        raise TlsConfigError(f"TLS client_ca {options.client_ca}: {reason}") from None
    if options.crl is not None:
        _load_revocations(context, options.crl)


def _load_revocations(context: ssl.SSLContext, file: Path) -> None:
    data = _pem(file)
    try:
        lists = [x509.load_pem_x509_crl(part) for part in _parts(data, b"X509 CRL")]
        if not lists:
            raise TlsConfigError(f"TLS crl {file}: there is no revocation list (X509 CRL) in it")
        with unmarked_copy(file) as unmarked:
            context.load_verify_locations(unmarked)
    except (ssl.SSLError, ValueError):
        raise TlsConfigError(f"TLS crl {file}: a revocation list in it is damaged") from None
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _certificates(file: Path) -> list[x509.Certificate]:
    data = _pem(file)
    try:
        certificates = [
            x509.load_pem_x509_certificate(part) for part in _parts(data, b"CERTIFICATE")
        ]
    except ValueError:
        raise TlsConfigError(f"TLS certificate {file}: a certificate in it is damaged") from None
    if not certificates:
        raise TlsConfigError(f"TLS certificate {file}: there is no certificate in it")
    return certificates


def _pem(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        raise TlsConfigError(f"TLS file {file}: {_because(error)}") from None
    if b"-----BEGIN " not in data:
        raise TlsConfigError(f"TLS file {file}: it is not PEM (-----BEGIN ... is missing)")
    return data


def _parts(data: bytes, kind: bytes) -> list[bytes]:
    """Return the PEM blocks of one kind; other text is ignored. Raises ValueError."""
    begin = b"-----BEGIN %s-----" % kind
    parts = re.findall(begin + b".*?-----END %s-----" % kind, data, re.DOTALL)
    if data.count(begin) > len(parts):
        raise ValueError(kind)
    return [part + b"\n" for part in parts]


def _password(file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        return (skip_mark(file.read_bytes()).splitlines() or [b""])[0]
    except (OSError, ValueError) as error:
        raise TlsConfigError(f"TLS key password file {file}: {_because(error)}") from None


def _because(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
