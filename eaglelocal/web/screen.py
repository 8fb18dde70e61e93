"""The program behind one page: the monitor of a server, drawn for textual-serve. `python -m eaglelocal.web.screen URL`.

Looks and keys are the settings' of whoever serves the page.
"""

from __future__ import annotations

import os
import sys

from eaglelocal import locations
from eaglelocal.settings import Settings
from eaglelocal.tui.watching import watch_server

KEY_VARIABLE = "EAGLELOCAL_WATCHED_KEY"


def main() -> None:
    api_key = os.environ.pop(KEY_VARIABLE, "")
    watch_server(sys.argv[1], api_key, Settings.load({}, os.environ, locations.config_file()))


if __name__ == "__main__":
    main()
