"""The command ``topas``."""

from __future__ import annotations

import sys

from topas.errors import TopasError

__all__ = ["main"]


def main() -> None:
    """Run the command line; bad input ends with one line on stderr and exit status 2."""
    try:
        from topas.cli.app import app
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"error: {error.name} is missing; install it with: pip install 'topas[sim]'\n"
        )
        sys.exit(2)
    try:
        app()
    except TopasError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, as in `topas decide FILE | head`
        sys.exit(1)
