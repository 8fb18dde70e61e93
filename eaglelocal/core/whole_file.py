"""Writing a small file so that it is there whole or not at all, whoever else writes it at that moment.

Knows nothing of what is written. Only the owner may read it, for some of these files hold keys.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from eaglelocal.core.private_folder import make_private_folder


def write_whole(path: Path, content: str | bytes) -> None:
    """Beside its place, then moved there; makes the folder. Raises OSError, and leaves nothing behind then."""
    make_private_folder(path.parent)
    handle, made = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)  # 0600 by itself
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
