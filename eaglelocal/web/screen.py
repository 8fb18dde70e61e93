"""The program behind one page: the monitor of a server, drawn for textual-serve. `python -m eaglelocal.web.screen URL`.

Looks and keys are the settings' of whoever serves the page.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from eaglelocal import locations
from eaglelocal.backend.parent_watch import end_with_parent
from eaglelocal.settings import Settings
from eaglelocal.tui.watching import watch_server

KEY_VARIABLE = "EAGLELOCAL_WATCHED_KEY"


def main() -> None:
    end_with_parent()
    api_key = os.environ.pop(KEY_VARIABLE, "")
    settings = Settings.load({}, os.environ, locations.config_file())
    if settings.glyphs == "auto":
        settings = replace(settings, glyphs="unicode")  # whatever the server's own terminal is, or was
    watch_server(sys.argv[1], api_key, settings)


if __name__ == "__main__":
    main()
