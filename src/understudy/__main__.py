"""`python -m understudy` is `understudy`."""

import platform
import sys

if sys.version_info < (3, 11):  # noqa: UP036  a source tree, or pip's --ignore-requires-python, can bring it here
    sys.stderr.write(
        "understudy: this is Python " + platform.python_version() + " (" + sys.executable + "), and 3.11 or newer is "
        "needed: install one, and understudy with its pip\n"
    )
    sys.exit(2)

if sys.platform == "win32":
    from understudy.errors import ON_WINDOWS

    sys.stderr.write(f"understudy: {ON_WINDOWS}\n")
    sys.exit(2)

from understudy.cli import main

if __name__ == "__main__":
    main()
