"""The certificates of servers that are trusted: confirmed by the user for an address, else signed by an authority.

As with SSH, `eaglelocal trust URL` shows the fingerprint of a certificate that no authority has signed, and keeps it.
A server of this machine keeps its own for this user. SSL_CERT_FILE names other authorities, as everywhere.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from pathlib import Path
from urllib.parse import SplitResult

from eaglelocal import locations
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.errors import EngineError

FETCH_S = 5.0  # for the handshake
HASH = "SHA256:"


def certificate_path(host: str, port: int) -> Path:
    """Return the file of the certificate that is trusted at this address."""
    name = "".join(char if char.isalnum() or char in ".-" else "_" for char in host.lower())
    return locations.trusted_certificates_dir() / f"{name}_{port}.pem"


def make_context(host: str, port: int) -> ssl.SSLContext:
    """Return a context that accepts exactly the confirmed certificate, or what the system's authorities have signed."""
    path = certificate_path(host, port)
    if not path.is_file():
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # this very certificate was confirmed, whatever names it has
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be its own authority
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} holds no certificate", hint=f"eaglelocal trust https://{host}:{port}") from error
    return context


def trust(host: str, port: int, certificate: str) -> Path:
    """Keep a certificate (PEM) as the trusted one of an address. Raises OSError."""
    path = certificate_path(host, port)
    write_atomically(path, certificate)
    return path


def fetch_certificate(parts: SplitResult) -> str:
    """Return the certificate that a server shows, in PEM, whoever signed it. Raises EngineError."""
    host, port = parts.hostname or "", parts.port or 443
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=FETCH_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            shown = connection.getpeercert(binary_form=True) or b""
    except ssl.SSLError as error:
        raise EngineError(f"{host}:{port} does not speak TLS: {error.reason}", hint=f"http://{host}:{port}") from error
    except (OSError, UnicodeError) as error:
        raise EngineError(f"cannot reach {host}:{port}: {error}") from error
    return ssl.DER_cert_to_PEM_cert(shown)


def fingerprint(certificate: str) -> str:
    """Return the SHA-256 fingerprint of a certificate in PEM, the first one of a chain: SHA256:AB:12:..."""
    end = "-----END CERTIFICATE-----"
    first = certificate[certificate.index("-----BEGIN CERTIFICATE-----") : certificate.index(end) + len(end)]
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest().upper()
    return HASH + ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def is_same_fingerprint(one: str, other: str) -> bool:
    """Compare fingerprints as people write them: with or without SHA256:, colons, spaces and capitals."""
    return _bare(one) == _bare(other)


def _bare(text: str) -> str:
    return text.strip().upper().removeprefix(HASH).replace(":", "").replace(" ", "")


def explain(error: Exception, url: str) -> str:
    """Return a hint about a failed handshake; "" for other errors."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "the server needs a new one" if "expired" in error.verify_message else f"eaglelocal trust {url}"
    if isinstance(error, ssl.SSLError):
        return "does the server speak http:// only?"
    return ""
