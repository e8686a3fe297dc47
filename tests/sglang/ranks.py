"""Several tensor-parallel ranks of one engine: a process each, gloo between them."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import InProcessEngine, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext

    Work = Callable[[InProcessEngine], object]


def _clean_server() -> ForkServerContext:
    """Return the context of a server that has imported SGLang (15 s, once) and forks from there.

    A child forked from here may hang: the threads of engines that were open leave locks behind.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine"])
    # before Python 3.13 the server imports without this process's sys.path, and fails in silence
    path = os.environ.get("PYTHONPATH")
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = here if path is None else here + os.pathsep + path
    try:
        forkserver.ensure_running()
    finally:
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path
    return context


def _child(
    pipe: Connection, work: Work, server_args: dict[str, Any], environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    cpus = f"0-{(os.cpu_count() or 1) - 1}"  # SGLang wants to hear of them: a machine's ranks share
    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join([cpus] * server_args["tp_size"])
    try:
        with InProcessEngine(**server_args) as engine:
            pipe.send((True, work(engine)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def run_ranks(
    work: Work,
    size: int = 2,
    *,
    timeout_s: float = 120,
    environment: Mapping[str, str] | None = None,
    **server_args: Any,
) -> list[Any]:
    """Run ``work(engine)`` on every rank of an engine with ``tp_size=size``.

    Parameters
    ----------
    work
        A function of a module (or a partial of one): it is pickled to a process on each rank, and
        what it returns comes back pickled. ``engine.rank`` tells where it is. Only rank 0 submits,
        and each rank calls ``engine.run()`` as often as rank 0.
    size
        Number of ranks.
    timeout_s
        After so many seconds the ranks are killed.
    environment
        Variables on top of those that the first call in this process found.
    server_args
        As of ``InProcessEngine``.

    Returns
    -------
    list
        The results in the order of the ranks.

    Raises
    ------
    RuntimeError
        With the traceback if a rank raised (the others would wait for it, and are killed).
    TimeoutError
        If a rank took too long.
    """
    context = _clean_server()
    extra = dict(environment or {})
    shared = {"tp_size": size, "nccl_port": free_port(), **server_args}
    pipes: dict[Connection, int] = {}
    processes = []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_child, args=(theirs, work, {"rank": rank, **shared}, extra)
        )
        process.start()
        theirs.close()
        pipes[ours] = rank
        processes.append(process)
    try:
        results = _results(pipes, time.monotonic() + timeout_s)
        for process in processes:
            process.join(10)
        return results
    finally:
        for process in processes:
            process.kill()
            process.join()


def _results(pipes: dict[Connection, int], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        open_pipes = [pipe for pipe, rank in pipes.items() if rank not in results]
        ready = wait(open_pipes, _left(deadline))
        if not ready:
            raise TimeoutError(f"no result of ranks {sorted(set(pipes.values()) - set(results))}")
        for pipe in filter(ready.__contains__, open_pipes):
            try:
                good, result = pipe.recv()
            except EOFError:
                good, result = False, "the process died"
            if not good:
                raise RuntimeError(f"rank {pipes[pipe]}: {result}")
            results[pipes[pipe]] = result
    return [results[rank] for rank in sorted(results)]


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)
