"""The address of a server as people type it: with or without http://, or only the port of this machine."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def split_address(text: str) -> SplitResult:
    """Split an address; a bare number is a port of this machine. Raises ValueError.

    >>> split_address("8421").geturl(), split_address("box:8080").geturl()
    ('http://127.0.0.1:8421', 'http://box:8080')
    """
    if text.isascii() and text.isdecimal():
        text = f"127.0.0.1:{text}"
    return urlsplit(text if "://" in text else f"http://{text}")
