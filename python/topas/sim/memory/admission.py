"""How much the running requests are expected to generate yet, as SGLang estimates it."""

from __future__ import annotations

from collections.abc import Sequence

from topas.sim.options import EngineOptions
from topas.sim.request import Request

__all__ = ["NewTokenRatio"]


class NewTokenRatio:
    """The share of its remaining ``max_new`` that a running request is expected to generate.

    It starts high, falls with each decode step as long as the memory suffices, and is raised by a
    retraction (SGLang 0.5: ``new_token_ratio``).

    Parameters
    ----------
    options : EngineOptions
        Start, end and steps of the fall.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._initial = options.new_token_ratio
        self._least = options.new_token_ratio * options.min_new_token_ratio_factor
        self._decay = (self._initial - self._least) / options.new_token_ratio_decay_steps
        self._ahead = options.retract_decode_steps
        self._from = self._initial
        self._steps = 0

    @property
    def value(self) -> float:
        """The ratio now, above 0 and at most 1."""
        return max(self._from - self._decay * self._steps, self._least)

    def decoded(self, steps: int) -> None:
        """So many decode steps found their memory."""
        self._steps += steps

    def reset(self) -> None:
        """The engine is idle."""
        self._from, self._steps = self._initial, 0

    def retracted(self, running: Sequence[Request]) -> None:
        """Requests were retracted, ``running`` go on: estimate anew from what these have generated.

        The step that was short of memory does not count as one that found it.
        """
        generated = sum(request.generated_tokens for request in running)
        allowed = sum(request.max_output_tokens for request in running)
        self._from = min(1.0, (generated + self._ahead * len(running)) / (allowed + 1))
        self._steps = -1
