"""Recorded workloads: traces of requests in several forms, read, written and made into workloads.

Forms (``docs/traces.md``): our compact one, Mooncake's (plain, with sessions, agentic), and the
detailed result files of SGLang's and vLLM's serving benchmarks.
"""

from topas.sim.trace.formats import TRACE_FORMATS, WRITE_FORMATS, read_trace, write_trace
from topas.sim.trace.load import load_trace, to_workload
from topas.sim.trace.rows import Trace, TraceRow
from topas.sim.trace.scale import TRACE_SCALES, TraceScale

__all__ = [
    "TRACE_FORMATS",
    "TRACE_SCALES",
    "WRITE_FORMATS",
    "Trace",
    "TraceRow",
    "TraceScale",
    "load_trace",
    "read_trace",
    "to_workload",
    "write_trace",
]
