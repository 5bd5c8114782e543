"""Certificates for tests: an authority, servers and clients, revocation lists, damaged files."""

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = dt.timedelta(days=1)
_PEM = serialization.Encoding.PEM


class Pair:
    """A certificate and its key, with the files they are in."""

    def __init__(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, stem: Path
    ) -> None:
        self.x509 = certificate
        self.private = key
        self.certificate = stem.with_suffix(".pem")
        self.key = stem.with_suffix(".key")
        self.certificate.write_bytes(certificate.public_bytes(_PEM))
        self.key.write_bytes(_key_pem(key, serialization.NoEncryption()))

    def encrypted_key(self, password: bytes) -> Path:
        """The key in a file that asks for a password."""
        file = self.key.with_suffix(".encrypted.key")
        how = serialization.BestAvailableEncryption(password)
        file.write_bytes(_key_pem(self.private, how))
        return file


def _key_pem(
    key: ec.EllipticCurvePrivateKey, how: serialization.KeySerializationEncryption
) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, how)


class Authority:
    """Signs certificates; all files are in `directory`."""

    def __init__(self, directory: Path, name: str = "foldmq tests") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(self._name, self._name, key, dt.datetime.now(dt.UTC) - _DAY, 10 * _DAY)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        made = made.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        self._pair = Pair(made.sign(key, hashes.SHA256()), key, directory / "ca")
        self.file = self._pair.certificate

    def server(self, stem: str = "server", *, expired: bool = False) -> Pair:
        """A certificate for 127.0.0.1, ::1 and localhost."""
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.IPAddress(ipaddress.ip_address("::1")),
        ]
        common = [x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]
        return self._sign(stem, common, names, [ExtendedKeyUsageOID.SERVER_AUTH], expired=expired)

    def node(self, name: str) -> Pair:
        """A certificate of a node of a cluster: it is a server's and a client's."""
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        common = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        return self._sign(name, common, [], usages, expired=False)

    def client(
        self,
        common_name: str,
        *,
        stem: str | None = None,
        names: Sequence[x509.GeneralName] = (),
        organisation: str | None = None,
        expired: bool = False,
    ) -> Pair:
        """A client certificate."""
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organisation is not None:
            subject.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._sign(stem or common_name, subject, names, usages, expired=expired)

    def revoke(self, *pairs: Pair, expired: bool = False) -> Path:
        """A revocation list with these on it."""
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - 2 * _DAY)
            .next_update(now - _DAY if expired else now + 5 * _DAY)
        )
        for pair in pairs:
            made = made.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(pair.x509.serial_number)
                .revocation_date(now - _DAY)
                .build()
            )
        file = self.directory / "revoked.crl"
        file.write_bytes(made.sign(self._pair.private, hashes.SHA256()).public_bytes(_PEM))
        return file

    def client_context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this authority, and shows a certificate if it has one."""
        context = ssl.create_default_context(cafile=str(self.file))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    def _sign(
        self,
        stem: str,
        subject: Sequence[x509.NameAttribute[str]],
        names: Sequence[x509.GeneralName],
        usages: Sequence[x509.ObjectIdentifier],
        *,
        expired: bool,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        begin = dt.datetime.now(dt.UTC) - (5 * _DAY if expired else _DAY)
        life = _DAY if expired else 10 * _DAY
        made = _builder(x509.Name(subject), self._name, key, begin, life)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        made = made.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._pair.private.public_key()),
            critical=False,
        )
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Pair(made.sign(self._pair.private, hashes.SHA256()), key, self.directory / stem)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begin: dt.datetime,
    life: dt.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + life)
    )
