"""The certificate of a server: the user's files, or a pair that this machine signs itself (`--ssl auto`)."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.own_package import suggest_extra
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, GeneralName

VALID_FOR = datetime.timedelta(days=3650)
RENEWED_BEFORE = datetime.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """Files in PEM: a certificate, perhaps with its chain, and its key."""

    certificate: Path
    key: Path

    @property
    def text(self) -> str:
        return self.certificate.read_text(encoding="ascii")


def choose_certificate(ssl_mode: str, certificate: str, key: str, names: Sequence[str]) -> ServerCertificate | None:
    """Return the certificate to serve with; None: plain HTTP.

    ssl_mode  off or auto: a pair of our own, for these names and addresses

    Raises UsageError for files that are missing, no pair, or expired, and ResourceError if none can be made.
    """
    if bool(certificate) != bool(key):
        missing = "--ssl-key" if certificate else "--ssl-cert"
        raise UsageError("a certificate and its key belong together", hint=f"{missing} FILE.pem")
    if certificate:
        pair = ServerCertificate(expand_path(certificate), expand_path(key))
        check_pair(pair)
        return pair
    return find_own_certificate(names) if ssl_mode == "auto" else None


def check_pair(pair: ServerCertificate) -> None:
    """Raise UsageError if a TLS server could not use the pair."""
    for path in (pair.certificate, pair.key):
        if not path.is_file():
            raise UsageError(f"no file {path}", hint="--ssl auto makes a certificate")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.certificate, pair.key, password="")
    except ssl.SSLError as error:
        why = f"{pair.certificate} and {pair.key} are no certificate and its key: {error.reason or error}"
        raise UsageError(why, hint="both in PEM, the key without a password") from error
    except OSError as error:
        raise UsageError(f"{pair.certificate} or {pair.key} cannot be read: {error.strerror}") from error


def find_own_certificate(names: Sequence[str]) -> ServerCertificate:
    """Return the pair of this machine for all these names, a new one if it lacks one of them or ends soon."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise UsageError("--ssl auto needs cryptography", hint=suggest_extra("ssl")) from error
    folder = locations.own_certificate_dir()
    pair = ServerCertificate(folder / "certificate.pem", folder / "key.pem")
    wanted = sorted({"localhost", "127.0.0.1", "::1", *names})
    if pair.certificate.is_file() and pair.key.is_file():
        try:
            made = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
            has_all = set(wanted) <= set(_list_names(made))
            if has_all and made.not_valid_after_utc - _now() > RENEWED_BEFORE:
                check_pair(pair)
                return pair
        except (ValueError, UsageError):
            pass  # damaged: a new pair takes its place
    _write_pair(pair, wanted)
    return pair


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _list_names(certificate: Certificate) -> list[str]:
    from cryptography import x509

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    addresses = map(str, extension.value.get_values_for_type(x509.IPAddress))
    return [*extension.value.get_values_for_type(x509.DNSName), *addresses]


def _write_pair(pair: ServerCertificate, names: Sequence[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "eaglelocal")])
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(_now() + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    try:
        write_atomically(pair.key, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        write_atomically(pair.certificate, certificate.public_bytes(pem))
    except OSError as error:
        hint = "set XDG_STATE_HOME to a folder that can be written"
        raise ResourceError(f"{pair.key.parent} cannot be written: {error.strerror}", hint=hint) from error


def _general_name(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
