"""What things cost on the modelled engine.

:class:`EngineCosts` holds the costs. They come from its defaults, from a GPU and a model by their
published figures (:func:`engine_costs`), or from measured rows (:func:`fit_rows`; files are read by
:mod:`topas.sim.cost.measured`, which needs pydantic and is not imported here).
"""

from topas.sim.cost.fit import DecodeRow, MeasuredCosts, PrefillRow, fit_rows
from topas.sim.cost.gpus import GPUS, Gpu, find_gpu
from topas.sim.cost.linear import TIME_EPSILON_S, TYPICAL_BATCH, EngineCosts
from topas.sim.cost.models import MODELS, LlmModel, find_model
from topas.sim.cost.roofline import Efficiency, engine_costs

__all__ = [
    "GPUS",
    "MODELS",
    "TIME_EPSILON_S",
    "TYPICAL_BATCH",
    "DecodeRow",
    "Efficiency",
    "EngineCosts",
    "Gpu",
    "LlmModel",
    "MeasuredCosts",
    "PrefillRow",
    "engine_costs",
    "find_gpu",
    "find_model",
    "fit_rows",
]
