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
    watch_server(sys.argv[1], api_key, load_page_settings(), keeps_theme=False)


def load_page_settings() -> Settings:
    """Return the settings of the user who serves the page, for a browser: every browser can draw Unicode."""
    settings = Settings.load({}, os.environ, locations.config_file())
    return replace(settings, glyphs="unicode") if settings.glyphs == "auto" else settings


if __name__ == "__main__":
    main()
