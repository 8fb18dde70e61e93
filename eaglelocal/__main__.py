"""`python -m eaglelocal` is the command `eaglelocal`."""

import sys

from eaglelocal.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
