"""`python -m dcray` is the `dcray` command."""

from dcray.cli import main

if __name__ == "__main__":
    main()
