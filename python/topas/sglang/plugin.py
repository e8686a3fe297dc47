"""The plugin: found by SGLang through its entry point, active only when it is switched on.

SGLang calls :func:`activate` in each of its processes before it builds anything. What happens then
is in each scheduler process: when a ``Scheduler`` is built, it is checked that SGLang is a version
that was tested, that every hook took and that nothing is asked for that topas does not go with;
else the start is refused. Errors in a plugin are only logged by SGLang, errors in the building of
a scheduler are not.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from topas.errors import TopasError
from topas.sglang.clock import RankClock
from topas.sglang.switch import is_enabled

__all__ = ["PluginError", "activate", "bridge_of"]

logger = logging.getLogger(__name__)

_SCHEDULER = "sglang.srt.managers.scheduler"
_RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver"
_DETOKENIZER = "sglang.srt.managers.detokenizer_manager"

_ATTRIBUTE = "topas_bridge"  # of a scheduler that is driven
_CLOCK = RankClock()  # of the scheduler that this process runs


class PluginError(TopasError, RuntimeError):
    """Topas refuses to start, and says why."""


def bridge_of(scheduler: Any) -> Any | None:
    """The bridge that drives a scheduler; ``None`` when nothing does."""
    return vars(scheduler).get(_ATTRIBUTE)


# -- hooks


def _built(original: Callable[..., None], scheduler: Any, *args: Any, **kwargs: Any) -> None:
    from topas.sglang.settings import Settings
    from topas.sglang.view import refused_arguments

    settings = Settings.from_environment(os.environ)
    if settings is None:
        original(scheduler, *args, **kwargs)
        return
    _check(settings)
    _accept(refused_arguments(kwargs["server_args"] if "server_args" in kwargs else args[0]))
    original(scheduler, *args, **kwargs)
    setattr(scheduler, _ATTRIBUTE, _bridge(scheduler, settings))


def _pass(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    bridge = bridge_of(scheduler)
    if bridge is None:
        return original(scheduler, *args, **kwargs)
    running = kwargs["running_batch"] if "running_batch" in kwargs else args[-1]
    return bridge.schedule(lambda: original(scheduler, *args, **kwargs), running)


def _queued(_: None, scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    bridge = bridge_of(scheduler)
    if bridge is None:
        return
    if scheduler.waiting_queue and scheduler.waiting_queue[-1] is req:
        _timed(bridge, bridge.queued, req)
    else:
        bridge.aborted()  # SGLang has refused it, perhaps one that it had before


def _launch(
    original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    bridge = bridge_of(scheduler)
    if bridge is not None:
        bridge.residency.launch(batch)
    return original(scheduler, batch, *args, **kwargs)


def _processed(_: None, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    bridge = bridge_of(scheduler)
    if bridge is not None:
        _timed(bridge, bridge.processed, batch)


def _timed(bridge: Any, event: Callable[[Any], None], what: Any) -> None:
    begin = time.perf_counter()
    event(what)
    bridge.counts.spent(time.perf_counter() - begin)


def _aborted(_: None, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    bridge = bridge_of(scheduler)
    if bridge is not None:
        bridge.aborted()


def _flushed(done: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    bridge = bridge_of(scheduler)
    if bridge is not None and done:
        bridge.flushed()


def _received(
    original: Callable[..., list[Any]], receiver: Any, messages: Any, *args: Any, **kwargs: Any
) -> list[Any]:
    if messages is not None:  # the rank that reads them
        messages = _CLOCK.attach(messages)
    return _CLOCK.detach(original(receiver, messages, *args, **kwargs))


#: Target, kind of hook, hook. The first one checks that the others took.
HOOKS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    (f"{_SCHEDULER}.Scheduler.__init__", "AROUND", _built),
    (f"{_SCHEDULER}.Scheduler._get_new_batch_prefill_raw", "AROUND", _pass),
    (f"{_SCHEDULER}.Scheduler._add_request_to_queue", "AFTER", _queued),
    (f"{_SCHEDULER}.Scheduler.run_batch", "AROUND", _launch),
    (f"{_SCHEDULER}.Scheduler.process_batch_result", "AFTER", _processed),
    (f"{_SCHEDULER}.Scheduler.abort_request", "AFTER", _aborted),
    (f"{_SCHEDULER}.Scheduler.process_pending_chunked_abort", "AFTER", _aborted),
    (f"{_SCHEDULER}.Scheduler.flush_cache", "AFTER", _flushed),
    (f"{_RECEIVER}.SchedulerRequestReceiver._broadcast_reqs_across_ranks", "AROUND", _received),
)


# -- at the start


def activate() -> None:
    """Entry point of group ``sglang.srt.plugins``: hook the scheduler, if topas is switched on.

    Raises
    ------
    SystemExit
        The switch is neither on nor off, or this SGLang has no scheduler to hook. (SGLang only logs
        other errors of plugins and would go on without topas.)
    """
    try:
        if not is_enabled(os.environ):
            return
        if _DETOKENIZER in sys.modules and _SCHEDULER not in sys.modules:
            return  # a process without a scheduler: nothing to hook, and seconds to import
        _register()
    except TopasError as error:
        raise SystemExit(f"topas: {error}") from error


def _register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    first = HOOKS[0][0]
    if first in HookRegistry._patched:
        raise PluginError(f"{first} was hooked before the plugins were loaded")
    try:
        __import__(_SCHEDULER)
        _resolve(first)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"this SGLang ({_version()}) has no {first}: {error}") from error
    for target, kind, hook in HOOKS:
        HookRegistry.register(target, hook, HookType[kind])


def _version() -> str:
    from importlib.metadata import version

    import sglang

    return str(getattr(sglang, "__version__", None) or version("sglang"))


def _resolve(target: str) -> Any:
    module, owner, name = target.rsplit(".", 2)
    return getattr(getattr(sys.modules[module], owner), name)


def _took(target: str, hook: Callable[..., Any]) -> bool:
    """Whether a hook is among the wrappers of its target."""
    try:
        function = _resolve(target)
    except (KeyError, AttributeError):
        return False
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        if any(cell.cell_contents is hook for cell in function.__closure__ or ()):
            return True
        function = inner
    return False


def _check(settings: Any) -> None:
    from topas.sglang.view import FIRST, LAST, is_tested

    version = _version()
    if not is_tested(version) and not settings.allow_untested_version:
        raise PluginError(
            f"SGLang {version} is not supported: topas is tested with {FIRST} to {LAST} "
            "(allow_untested_version: true in TOPAS_CONFIG starts it all the same)"
        )
    missing = [target for target, _, hook in HOOKS if not _took(target, hook)]
    if missing:
        raise PluginError(f"hooks did not take in SGLang {version}: {', '.join(missing)}")


def _accept(reasons: list[str]) -> None:
    if reasons:
        raise PluginError("cannot start with " + "; ".join(reasons))


def _bridge(scheduler: Any, settings: Any) -> Any:
    from topas.sglang.bridge import Bridge
    from topas.sglang.metrics import Counts, Prometheus
    from topas.sglang.view import View, reasons_against

    global _CLOCK
    _CLOCK = RankClock()  # its time never goes back: a second scheduler needs a new one
    _accept(reasons_against(scheduler, settings.prefix_copies is not None))
    arguments = scheduler.server_args
    rank = int(scheduler.tp_group.rank_in_group)  # 0 reports
    exports = bool(arguments.enable_metrics) and rank == 0
    labels = {"model_name": str(arguments.served_model_name or arguments.model_path)}
    counts = Prometheus(labels) if exports else Counts()
    bridge = Bridge(View(scheduler), settings, _CLOCK, counts)
    logger.info(
        "policy=topas preset=%s rank=%d sglang=%s capacity=%d tokens page_size=%d max_running=%d",
        *(settings.preset, rank, _version(), bridge.view.capacity_tokens),
        *(bridge.view.page_size, bridge.view.max_running_requests),
    )
    return bridge
