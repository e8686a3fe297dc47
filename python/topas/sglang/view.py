"""SGLang's scheduler as the bridge sees it.

With :mod:`topas.sglang.cache` and :mod:`topas.sglang.layers` this is all that knows SGLang.

How versions differ:

=====================================  ==========================================================
what                                   difference
=====================================  ==========================================================
``ScheduleBatch.release_req``          up to 0.5.18 it also takes the server arguments
``Req.cache_salt``, ``Req.kv_hints``,  from 0.5.18, 0.5.21 and 0.5.21 on
``Req.beam_group``
=====================================  ==========================================================

Nothing is imported from SGLang before a scheduler is there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from topas.sglang.agents import Namespace
from topas.sglang.cache import PrefixCache
from topas.sglang.heads import Tokens
from topas.sglang.hints import Carriers

__all__ = ["FIRST", "LAST", "View", "is_tested", "reasons_against", "refused_arguments"]

FIRST, LAST = "0.5.16", "0.5.23"

_CLIP_NEW_TOKENS = 4096  # SGLang never reserves more for the generation of one request
_HEALTH_CHECK = "HEALTH_CHECK"

#: Server arguments that topas does not go with: name, the values that are fine, and why.
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("schedule_policy", ("fcfs",), "topas orders the queue; leave it at fcfs"),
    ("enable_priority_scheduling", (False, None), "SGLang would sort the queue again"),
    ("disable_radix_cache", (False, None), "prefixes would not be shared"),
    ("disaggregation_mode", ("null", None), "prefill and decode have queues of their own"),
    ("pp_size", (1, None), "pipeline stages have queues of their own"),
    ("enable_dp_attention", (False, None), "not tested: its ranks have queues of their own"),
    ("speculative_algorithm", (None,), "not tested with speculative decoding"),
    ("dllm_algorithm", (None,), "not tested with diffusion models"),
    ("enable_pdmux", (False, None), "its loop does not ask the scheduler"),
    ("enable_hisparse", (False, None), "not tested with hierarchical sparse attention"),
    ("enable_hierarchical_cache", (False, None), "not tested with a hierarchical cache"),
    ("enable_lmcache", (False, None), "not tested with LMCache"),
    ("is_embedding", (False, None), "not tested with embedding models"),
)


def is_tested(version: str) -> bool:
    """Whether a version of SGLang is in the tested range."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?![\d.]|a|b|rc)", version)
    if found is None:
        return False
    first, last = (tuple(map(int, v.split("."))) for v in (FIRST, LAST))
    return first <= tuple(map(int, found.groups())) <= last


def refused_arguments(arguments: Any) -> list[str]:
    """Which server arguments topas does not go with, as given, and why."""
    reasons = []
    for name, fine, why in _REFUSED:
        value = getattr(arguments, name, None)
        if value not in fine:
            option = "--" + name.replace("_", "-")
            reasons.append(f"{option} (now {value!r}): {why}")
    return reasons


def reasons_against(scheduler: Any, copies: bool = False) -> list[str]:
    """Why topas cannot drive this scheduler, with prefix copies or without; empty when it can."""
    reasons = PrefixCache(scheduler).reasons_against_copies() if copies else []
    if getattr(scheduler.tree_cache, "disable", False):
        reasons.append("a model for which SGLang has no prefix cache")
    if not scheduler.is_generation:
        reasons.append("a model that generates nothing")
    if getattr(scheduler, "is_hybrid_swa", False):
        reasons.append("a sliding window model: its KV pool is not counted in tokens")
    if getattr(scheduler, "is_hybrid_ssm", False) or hasattr(
        scheduler.req_to_token_pool, "mamba_allocator"
    ):
        reasons.append("a state space model: its states are not counted in tokens")
    return reasons


class View:
    """A scheduler of SGLang.

    Parameters
    ----------
    scheduler : sglang.srt.managers.scheduler.Scheduler
        The scheduler; read, and told what to release.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.page_size = int(scheduler.page_size)
        pages = int(scheduler.max_total_num_tokens) // self.page_size
        self.capacity_tokens = pages * self.page_size
        self.max_running_requests = int(scheduler.max_running_requests)
        cpu = str(getattr(scheduler, "device", None)) == "cpu"  # a launch returns with its results
        self.delay = int(bool(scheduler.enable_overlap) and not cpu)  # of results, in passes
        self._release_extra: tuple[Any, ...] | None = None
        self.cache = PrefixCache(scheduler)
        self._queue: list[Any] | None = None  # all of it, while SGLang sees only some
        self._shown: list[Any] = []
        self._late: list[Any] = []  # what comes in meanwhile

    # -- the queue

    @property
    def waiting(self) -> list[Any]:
        """The waiting queue."""
        return self.scheduler.waiting_queue  # type: ignore[no-any-return]

    @waiting.setter
    def waiting(self, queue: list[Any]) -> None:
        self.scheduler.waiting_queue = queue

    def show(self, some: list[Any], running_batch: Any) -> None:
        """From now on SGLang sees these requests alone in its queue, and takes a look at them."""
        self._queue, self._shown, self._late = self.waiting, list(some), []
        self.waiting = list(some)
        if some:
            running_batch.batch_is_full = False

    def defer(self, req: Any) -> None:
        """A request that comes in while only some are shown is none of them."""
        queue = self.waiting
        if self._queue is not None and queue and queue[-1] is req:
            del queue[-1]
            self._late.append(req)

    def restore(self) -> tuple[list[Any], set[int]]:
        """The queue is whole again; return what was shown, and ``id`` of those SGLang admitted."""
        left = {id(req) for req in self.waiting}
        admitted = {id(req) for req in self._shown if id(req) not in left}
        queue = self._queue or []
        if admitted:
            queue = [req for req in queue if id(req) not in admitted]
        self.waiting = queue + self._late
        self._queue = None
        return self._shown, admitted

    @property
    def chunked(self) -> Any | None:
        """The request whose prompt is computed in chunks right now."""
        return self.scheduler.chunked_req

    @staticmethod
    def load(batch: Any | None, running_batch: Any) -> tuple[int, int, int]:
        """Prompt tokens of a new batch (0 for none), requests that run, those it decodes beside."""
        decoding = len(getattr(batch, "decoding_reqs", None) or ())  # a mixed batch
        tokens = int(getattr(batch, "extend_num_tokens", None) or 0) - decoding
        return tokens, len(running_batch.reqs) + (len(batch.reqs) if batch else 0), decoding

    def is_empty(self, running_batch: Any) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.waiting and not self.running(running_batch)

    def running(self, running_batch: Any) -> list[Any]:
        """The requests that run, the one that is computed in chunks among them."""
        return [*running_batch.reqs, *([] if self.chunked is None else [self.chunked])]

    def everyone(self, running_batch: Any) -> list[Any]:
        """All requests that the scheduler has, wherever they are; some twice."""
        scheduler = self.scheduler
        found = [*scheduler.waiting_queue, *scheduler.grammar_manager.grammar_queue]
        found += self.running(running_batch)
        for batch in (scheduler.running_batch, scheduler.last_batch):
            found.extend(batch.reqs if batch is not None else ())
        for entry in getattr(scheduler, "result_queue", None) or ():
            found.extend(entry[0].reqs)
        return found

    # -- requests

    @staticmethod
    def is_unmanaged(req: Any) -> bool:
        """Whether the request only has to be answered: a health check, or one that is dead."""
        return req.to_finish is not None or req.finished() or str(req.rid).startswith(_HEALTH_CHECK)

    def can_be_preempted(self, req: Any, others: int = 0) -> bool:
        """Whether a running request can be thrown out without harm, beside so many others.

        Not one that has finished or is about to (its KV would be freed twice), nor one whose rows
        others hold (beams, sessions, chunks), nor any when the queue is too full to take it back.
        """
        limit = getattr(self.scheduler, "max_queued_requests", None)
        return not (
            req.finished()
            or req.to_finish is not None
            or req is self.scheduler.chunked_req
            or getattr(req, "beam_group", None) is not None
            or getattr(req, "session", None) is not None
            or (limit is not None and len(self.waiting) + others + 1 > limit)
        )

    @staticmethod
    def was_aborted(req: Any) -> bool:
        """Whether a finished request was aborted."""
        reason = req.finished_reason
        return reason is not None and type(reason).__name__ == "FINISH_ABORT"

    @staticmethod
    def namespace(req: Any) -> Namespace:
        """Extra key, cache salt and LoRA id."""
        return (req.extra_key, getattr(req, "cache_salt", None), req.lora_id)

    @staticmethod
    def carriers(req: Any) -> Carriers:
        """What a request carries of hints."""
        payloads: list[Mapping[str, Any]] = []
        for action in getattr(getattr(req, "kv_hints", None), "actions", ()):
            if action.action_type == "topas.meta":
                payloads.append(action.payload)
        return Carriers(
            custom_params=req.sampling_params.custom_params,
            routing_key=getattr(req, "routing_key", None),
            session_id=getattr(req, "session_id", None),
            kv_payloads=payloads,
        )

    def reserve_tokens(self, req: Any) -> int:
        """Tokens to reserve for the generation of a request, in whole pages with its prompt.

        SGLang's own estimate: of requests that may stop early a share (``new_token_ratio``). Never
        more than the pool leaves beside the prompt: what SGLang has accepted can run alone.
        """
        sampling = req.sampling_params
        new = min(int(sampling.max_new_tokens or 0), _CLIP_NEW_TOKENS)
        if not sampling.ignore_eos:
            new = int(new * min(float(self.scheduler.new_token_ratio_tracker.current), 1.0)) + 1
        prompt = len(req.origin_input_ids)
        pages = -(-(prompt + max(new, 1)) // self.page_size)
        return max(min(pages * self.page_size, self.capacity_tokens) - prompt, 1)

    # -- memory

    def holds(self, tokens: Tokens, namespace: Namespace) -> int:
        """How many of these tokens, counted from the first, the prefix tree has."""
        return self.cache.match(tokens, namespace).length

    def needs(self, running_batch: Any) -> int:
        """Slots that SGLang takes in a pass for the requests that run, at most."""
        tokens = len(running_batch.reqs) * self.page_size
        if self.chunked is not None:
            chunk = int(self.scheduler.chunked_prefill_size or 0)
            tokens += chunk + self.page_size if chunk > 0 else 0
        return tokens

    def copy_backend(self, device: Any) -> Any | None:
        """How prefixes are copied on a device; ``None`` for the backend that goes with it.

        On a GPU a copy has to come after what the stream of the forward passes has queued.
        """
        if device.type != "cuda":
            return None
        from topas.sglang.prefix_copy import CudaBackend

        return CudaBackend(device, compute_stream=getattr(self.scheduler, "forward_stream", None))

    @staticmethod
    def prompts(batch: Any) -> list[Any]:
        """The prompts of a batch: of each request its token ids, a sequence of int."""
        return [req.origin_input_ids for req in batch.reqs]

    @staticmethod
    def is_decode(batch: Any) -> bool:
        """Whether a batch computes no prompt."""
        return bool(batch.forward_mode.is_decode())

    def reason_against_layer_waits(self) -> str | None:
        """Why a forward pass cannot wait for one layer of the KV pool at a time; None if it can."""
        for owner, name in (
            (self.cache.pool, "register_layer_transfer_counter"),
            (self.scheduler.tp_worker, "register_hicache_layer_transfer_counter"),
        ):
            if not hasattr(owner, name):
                return f"{type(owner).__name__} has no {name}"
        graphs = getattr(self.scheduler.tp_worker.model_runner, "prefill_cuda_graph_runner", None)
        if getattr(graphs, "_is_full_backend", False):  # where each layer breaks them it can wait
            return "whole prefills are captured in CUDA graphs"
        return None

    def ask_before_layers(self, counter: Any) -> None:
        """From now on attention asks a counter before it reads a layer (``LayerWaits``)."""
        self.cache.pool.register_layer_transfer_counter(counter)
        self.scheduler.tp_worker.register_hicache_layer_transfer_counter(counter)

    @property
    def ranks(self) -> int:
        """Tensor-parallel ranks."""
        return int(self.scheduler.server_args.tp_size)

    def all_well(self, here: Sequence[bool]) -> list[bool]:
        """Whether each of some things went well on all ranks; all of them call it at a time."""
        import torch  # type: ignore[import-not-found, unused-ignore]

        flags = torch.tensor([int(fine) for fine in here], dtype=torch.int64)
        group = self.scheduler.tp_cpu_group
        torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MIN, group=group)
        return [bool(flag) for flag in flags.tolist()]

    # -- what is done to it

    def release(self, batch: Any, victims: Sequence[Any]) -> None:
        """Throw requests out of a running batch; their KV is free, nothing else is evicted."""
        if self._release_extra is None:
            wants = "server_args" in inspect.signature(batch.release_req).parameters
            self._release_extra = (self.scheduler.server_args,) if wants else ()
        gone = {id(req) for req in victims}
        keep = [at for at, req in enumerate(batch.reqs) if id(req) not in gone]
        for at, req in enumerate(batch.reqs):
            if id(req) in gone:
                batch.release_req(at, 0, *self._release_extra)
        batch.filter_batch(keep_indices=keep)

    def requeue(self, req: Any) -> None:
        """Put a victim back into the queue."""
        self.scheduler._add_request_to_queue(req, is_retracted=True)
