"""The process behind one page: it runs the monitor of a server, as `python -m eaglelocal.web.monitor_process URL`.

Appearance and key bindings come from the settings of the user who serves the page.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from eaglelocal import locations
from eaglelocal.backend.parent_watch import end_with_parent
from eaglelocal.settings import Settings
from eaglelocal.tui.monitor.run_monitor import watch_server

KEY_VARIABLE = "EAGLELOCAL_WATCHED_KEY"


def main() -> None:
    end_with_parent()
    api_key = os.environ.pop(KEY_VARIABLE, "")
    settings = Settings.load({}, os.environ, locations.config_file())
    if settings.glyphs == "auto":
        settings = replace(settings, glyphs="unicode")  # regardless of the terminal that the server was started in
    watch_server(sys.argv[1], api_key, settings)


if __name__ == "__main__":
    main()
