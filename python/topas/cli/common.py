"""What several commands share: options with a help text, lists with commas, the console."""

from __future__ import annotations

import sys
from typing import Any

import typer
from rich.console import Console

__all__ = ["console_of", "option", "parts"]


def option(text: str, *names: str, panel: str | None = None) -> Any:
    """An option of a command.

    Parameters
    ----------
    text : str
        Its help.
    *names : str
        How it is written, where the parameter's name does not say.
    panel : str, optional
        The group that the help shows it in.
    """
    return typer.Option(*names, help=text, rich_help_panel=panel)


def parts(text: str) -> tuple[str, ...]:
    """The items of a list with commas, without blanks around them."""
    return tuple(part.strip() for part in text.split(","))


def console_of(width: int = 160) -> Console:
    """Standard output: as wide as the terminal, or ``width`` columns where it is none."""
    return Console(width=None if sys.stdout.isatty() else width)
