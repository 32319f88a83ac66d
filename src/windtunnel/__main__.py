"""`python -m windtunnel` is `windtunnel`."""

import platform
import sys

if sys.version_info < (3, 11):  # noqa: UP036  a source tree, or pip's --ignore-requires-python, can bring it here
    sys.stderr.write(
        "windtunnel: this is Python " + platform.python_version() + " (" + sys.executable + "), and 3.11 or newer is "
        "needed: install one, and windtunnel with its pip\n"
    )
    sys.exit(2)

if sys.platform == "win32":
    from windtunnel.errors import ON_WINDOWS

    sys.stderr.write(f"windtunnel: {ON_WINDOWS}\n")
    sys.exit(2)

try:
    from windtunnel.cli import main
except KeyboardInterrupt:  # Ctrl-C before there is anything to end
    sys.exit(130)

if __name__ == "__main__":
    main()
