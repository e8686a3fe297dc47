"""How much of a trace is run, and how large."""

from __future__ import annotations

from dataclasses import dataclass

from topas.sim.checks import check_choice, check_int, check_number

__all__ = ["TRACE_SCALES", "TraceScale"]

#: Names of the ready-made scales.
TRACE_SCALES: tuple[str, ...] = ("small", "medium", "full")


@dataclass(frozen=True, kw_only=True)
class TraceScale:
    """How much of a trace is run, and how large.

    Parameters
    ----------
    sessions : int or None
        The first so many sessions of the file; ``None``: all.
    max_stages : int or None
        The first so many stages of each session (in order of time); ``None``: all.
    max_rounds : int or None
        The first so many rounds of each stage; ``None``: all.
    token_scale : float
        Factor on all token counts, above 0.
    max_tool_wait_s : float
        Longer tool waits are cut to this, seconds.

    Raises
    ------
    ConfigError
        A field is of the wrong type or out of range; the message names it.
    """

    sessions: int | None = None
    max_stages: int | None = None
    max_rounds: int | None = 8
    token_scale: float = 0.2
    max_tool_wait_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("sessions", "max_stages", "max_rounds"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1)
        check_number("token_scale", self.token_scale, above=True)
        check_number("max_tool_wait_s", self.max_tool_wait_s)

    @classmethod
    def named(cls, name: str) -> TraceScale:
        """A ready-made scale.

        ``small``: six stages of two rounds a session, a tenth of the tokens, waits up to 10 s.
        ``medium``: the defaults. ``full``: every request at its recorded length (waits are cut to
        60 s here too; longer ones are a person's pauses).

        Raises
        ------
        ConfigError
            The name is unknown.
        """
        check_choice("trace_scale", name, TRACE_SCALES)
        if name == "small":
            return cls(max_stages=6, max_rounds=2, token_scale=0.1, max_tool_wait_s=10.0)
        if name == "medium":
            return cls()
        return cls(max_rounds=None, token_scale=1.0)
