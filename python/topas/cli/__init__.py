"""The command ``topas``."""

from __future__ import annotations

import os
import sys

from topas.errors import TopasError

__all__ = ["main"]


def main() -> None:
    """Run the command line; what goes wrong ends with one line on stderr and exit status 2."""
    try:
        from topas.cli.app import app
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"error: {error.name} is missing; install it with: pip install 'topas[sim]'\n"
        )
        sys.exit(2)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except TopasError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # the reader has gone, as in `topas decide FILE | head`
        _discard_output()
        sys.exit(1)
    except OSError as error:  # no room for the output, for example
        _discard_output()
        sys.stderr.write(f"error: {error.filename or 'output'}: {error.strerror or error}\n")
        sys.exit(2)


def _discard_output() -> None:
    """Let the interpreter's last flush of what cannot be written go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
