"""`python -m dcray` is the `dcray` command."""

from dcray.cli import run

if __name__ == "__main__":
    run()
