"""The `dcray` command, as `python -m dcray`."""

from dcray.cli import run

if __name__ == "__main__":
    run()
