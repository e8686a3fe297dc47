"""The commands, gathered."""

from __future__ import annotations

from typing import Annotated

import typer

import topas
from topas.cli.advise import advise
from topas.cli.bench_engine import bench_engine
from topas.cli.convert_trace import convert_trace
from topas.cli.decide import decide
from topas.cli.explain import explain
from topas.cli.phase_map import phase_map
from topas.cli.profiles import profiles
from topas.cli.reproduce import reproduce
from topas.cli.simulate import simulate

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Workflow-aware prefix-state scheduling for multi-agent LLM serving.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topas {topas.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options before the command."""


app.command()(decide)
app.command()(explain)
app.command()(simulate)
app.command()(reproduce)
app.command()(advise)
app.command()(phase_map)
app.command()(profiles)
app.command()(bench_engine)
app.command()(convert_trace)
