"""The `dcray` command. Commands only parse, call one function and print; nothing else prints.

What is slow to import (Ray, torch, MLflow, pydantic) is imported inside the commands, so that
`dcray --help` is quick.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from dcray import __version__
from dcray.cli.analyze import analyze
from dcray.cli.eval import eval
from dcray.cli.export import export
from dcray.cli.fit import fit
from dcray.cli.gap import gap
from dcray.cli.plan import plan
from dcray.cli.prepare import prepare
from dcray.cli.quickstart import quickstart
from dcray.cli.reproduce import reproduce
from dcray.cli.screen.console import BAD_INPUT, DONE, NOTHING, STOPPED, err, naming, out, plain
from dcray.cli.search import search
from dcray.cli.sizes import sizes
from dcray.cli.status import status
from dcray.cli.train import train
from dcray.cluster.environment import set_environment
from dcray.errors import ConfigError, RecordAwayError

NO_PATH = (errno.EACCES, errno.ENAMETOOLONG)  # of a path that cannot be looked up
INTERRUPTED = 130  # the exit code by which typer reports a Ctrl-C
PACKAGES = (
    "torch",
    "ray",
    "mlflow",
    "optuna",
    "numpy",
    "scipy",
    "matplotlib",
    "pyarrow",
    "tokenizers",
    "tiktoken",
    "lm-eval",
    "transformers",
)
EXIT_CODES = (
    "Exit codes: 0 done; 1 nothing usable came out; 2 bad input; 3 stopped by Ctrl-C or SIGTERM, "
    "run the same command again to go on; 4 finished with failed runs or cells."
)

app = typer.Typer(
    help="Find out what your pretraining data is worth: data-constrained studies on Ray.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
app.command(epilog=EXIT_CODES)(quickstart)
app.command(epilog=EXIT_CODES, cls=naming("sources"))(prepare)
app.command(epilog=EXIT_CODES, cls=naming("objectives", "optimizers"))(train)
app.command(epilog=EXIT_CODES)(search)
app.command(epilog=EXIT_CODES)(plan)
app.command(epilog=EXIT_CODES)(status)
app.command()(sizes)
app.command(epilog=EXIT_CODES)(eval)
app.command(epilog=EXIT_CODES)(gap)
app.command(epilog=EXIT_CODES)(export)
app.command(epilog=EXIT_CODES)(analyze)
app.command()(fit)
app.command()(reproduce)


def run() -> None:
    """Run `main` as a process of its own, which exits without the interpreter's final cleanup.

    All output is written by then. Native threads of Ray and Arrow that still live have crashed in
    that cleanup, and a search that was done was then a failed job.
    """
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    with suppress(KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]  # thread pools end
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        pass
    except OSError:
        code = code or NOTHING
    os._exit(code)


def main() -> None:
    """Run the command; a user's mistake is "error: ..." and exit code 2, never a traceback."""
    _open_streams()
    set_environment()
    os.environ["MPLBACKEND"] = "agg"  # a notebook's backend may be missing; no window is opened
    if plain():
        os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"  # of typer's own help and errors
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except ConfigError as error:
        for problem in error.problems:
            err.print(f"error: {problem}", markup=False)
        sys.exit(BAD_INPUT)
    except RecordAwayError as error:
        err.print(f"error: {error}", markup=False)
        sys.exit(STOPPED)
    except (KeyboardInterrupt, typer.Abort):
        err.print("stopped; run the same command again to go on", markup=False)
        sys.exit(STOPPED)
    except BrokenPipeError:
        sys.exit(DONE)
    except OSError as error:
        if error.errno not in NO_PATH or error.filename is None:
            raise
        err.print(f"error: {error.filename} cannot be used: {error.strerror}", markup=False)
        sys.exit(BAD_INPUT)
    except Exception as error:
        show = getattr(error, "show", None)  # a missing option, an unknown command
        if show is None:
            raise
        show()
        if getattr(error, "option_name", "") == "--plugin":
            err.print("--plugin goes before the command: dcray --plugin FILE ...", markup=False)
        sys.exit(BAD_INPUT)


def _open_streams() -> None:
    """Redirect a standard stream that was closed (`>&-`) to the null device.

    Else the next file that is opened takes the stream's number, and what is printed is written into
    that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            if nowhere != number:
                os.dup2(nowhere, number, inheritable=True)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Treat SIGTERM as a Ctrl-C."""
    raise KeyboardInterrupt


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    import platform
    from importlib.metadata import PackageNotFoundError, version

    out.print(f"dcray {__version__}")
    out.print(f"python {platform.python_version()}")
    for package in PACKAGES:
        try:
            out.print(f"{package} {version(package)}")
        except PackageNotFoundError:
            out.print(f"{package} is not installed")
    raise typer.Exit


@app.callback()
def _global(
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", help="A Python file with a plug-in; repeatable."),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Versions that matter, and exit.",
        ),
    ] = False,
) -> None:
    for path in plugin or []:
        from dcray import plugins

        plugins.use_file(path)
