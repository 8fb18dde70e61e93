"""`eaglelocal trust`: confirm the certificate of a server that no authority has signed."""

from __future__ import annotations

from typing import Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.output import confirm, standard_output
from eaglelocal.errors import ResourceError, UsageError


def trust(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the server: https://host:port.")],
    expected: Annotated[
        str | None, typer.Option("--fingerprint", metavar="SHA256", help="Trust it if this is its fingerprint.")
    ] = None,
    yes: flags.Yes = False,
) -> None:
    """Trust the certificate of a server, as SSH trusts a host.

    `eaglelocal serve --ssl auto` prints the fingerprint of its certificate: compare it.

    \b
    eaglelocal trust https://192.168.1.20:8421
    """
    from eaglelocal.client import trusted_certificates
    from eaglelocal.client.http_connection import parse_url

    output = standard_output()
    parts = parse_url(url)
    if parts.scheme != "https":
        raise UsageError(f"{url} has no certificate", hint=f"eaglelocal trust https://{parts.netloc}")
    certificate = trusted_certificates.fetch_certificate(parts)
    shown = trusted_certificates.fingerprint(certificate)
    output.message(f"the certificate of {parts.netloc} has the fingerprint")
    output.message(shown)
    if expected is not None and not trusted_certificates.is_same_fingerprint(shown, expected):
        raise UsageError("that is another certificate", hint="somebody else may answer at this address")
    confirm("is that what the server prints?", output, yes=yes or expected is not None, default=False)
    try:
        path = trusted_certificates.trust(parts.hostname or "", parts.port or 443, certificate)
    except OSError as error:
        raise ResourceError(f"the certificate cannot be kept: {error.strerror}", hint="free some space") from error
    output.message(f"trusted from now on; rm {path} ends that")
