"""`python -m understudy` is `understudy`."""

from understudy.cli import main

if __name__ == "__main__":
    main()
