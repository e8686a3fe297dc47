"""A real SGLang ``Scheduler`` in this process: no server, no child processes, no GPU.

Everything between the request's socket and the reply's is stock SGLang: requests are encoded as the
tokenizer process encodes them and read by the scheduler's own receiver, the loops are the real ones
(``run``) or their body by hand (``step``), and only the two senders are replaced, by a collector.

Import this module before SGLang: it sets the environment SGLang reads when it is imported.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import random
import socket
from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topas.enginebench.launch import other_models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def _other_model_modules() -> str:
    """Name every model module but those of the tests: SGLang imports them all, in 2.5 seconds."""
    if not (names := other_models()):
        raise ImportError("SGLang is not installed here: see tests/sglang/install.sh")
    return ",".join(names)


ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # more threads on a busy machine wait for one another
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # on several ranks it would call a C++ compiler
    "SGLANG_PLATFORM": "topas-test-cpu",
    # SGLang patches a hooked function once: an installed plugin would hide a test's own hook
    "SGLANG_PLUGINS": "none",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_DISABLED_MODEL_ARCHS": _other_model_modules(),
}
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

import torch  # noqa: E402
import zmq  # noqa: E402
from sglang.srt.distributed.parallel_state import (  # noqa: E402
    destroy_distributed_environment,
    destroy_model_parallel,
)
from sglang.srt.managers import io_struct  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import PortArgs, ServerArgs  # noqa: E402

DEFAULTS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "skip_tokenizer_init": True,
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "chunked_prefill_size": -1,
    "schedule_policy": "fcfs",
    "mem_fraction_static": 0.5,  # of what is free; the pool is capped by the next
    "max_total_tokens": 4096,
    "max_running_requests": 8,
    "random_seed": 1,
    "log_level": "error",
    # the watchdog of a scheduler that nobody steps would send SIGQUIT to this process's parent
    "watchdog_timeout": 1e6,
}

PASS_LIMIT = 20_000


@dataclass
class Output:
    """What became of one request."""

    token_ids: list[int] = field(default_factory=list)
    finish: dict[str, Any] | None = None
    """SGLang's finish reason, e.g. ``{"type": "length", "length": 8}``; None while unfinished."""
    cached_tokens: int = 0
    retractions: int = 0

    @property
    def reason(self) -> str | None:
        """The type of the finish reason: ``length``, ``stop`` or ``abort``."""
        return None if self.finish is None else self.finish["type"]


class _Inbox:
    """Stands for the socket from the tokenizer: the same bytes, without a race."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._polling = False
        self.before_poll: Callable[[], None] = lambda: None
        """Called once a pass, before its first message is taken."""

    def __len__(self) -> int:
        return len(self._messages)

    def rest(self) -> None:
        """Forget the poll under way and who wants to know of the next."""
        self._polling = False
        self.before_poll = lambda: None

    def send(self, data: bytes, flags: int = 0) -> None:
        self._messages.append(bytes(data))

    def send_pyobj(self, message: object, flags: int = 0, protocol: int = -1) -> None:
        self.send(pickle.dumps(message, protocol))

    def recv(self, flags: int = 0) -> bytes:
        if not self._polling:
            self._polling = True
            self.before_poll()
        if not self._messages:
            self._polling = False
            raise zmq.Again
        return self._messages.popleft()

    def recv_pyobj(self, flags: int = 0) -> object:
        return pickle.loads(self.recv(flags))


# ---- what differs between SGLang 0.5.16 and 0.5.23 ----


def _publish(server_args: ServerArgs, rank: int) -> None:
    """Install the process-wide configuration (0.5.16: a global; 0.5.21 and later: with ranks)."""
    try:
        from sglang.srt.runtime_context import publish
    except ImportError:
        from sglang.srt.server_args import set_global_server_args_for_scheduler

        set_global_server_args_for_scheduler(server_args)
        return
    extra: dict[str, Any] = {}
    if "ranks" in inspect.signature(publish).parameters:
        from sglang.srt.runtime_context import SpawnRanks

        extra["ranks"] = SpawnRanks(world_rank=rank, gpu_id=0)
    publish(server_args, role="scheduler", **extra)


def _new_scheduler(server_args: ServerArgs, ports: PortArgs, rank: int) -> Scheduler:
    """Build a scheduler (up to 0.5.20 the ranks are arguments)."""
    parameters = inspect.signature(Scheduler.__init__).parameters
    ranks: dict[str, int | None] = {"gpu_id": 0, "tp_rank": rank, "moe_ep_rank": 0, "pp_rank": 0}
    ranks |= {"attn_cp_rank": 0, "moe_dp_rank": 0, "dp_rank": None}
    return Scheduler(server_args, ports, **{k: v for k, v in ranks.items() if k in parameters})


def _leave_world() -> None:
    """Undo what a scheduler leaves in the process: the next one builds its own groups."""
    destroy_model_parallel()
    destroy_distributed_environment()


def _receive(scheduler: Scheduler) -> None:
    """Take in what has arrived, as the head of every loop does (0.5.20 gave it a name)."""
    if hasattr(scheduler, "ingest_requests"):
        scheduler.ingest_requests()
    else:
        scheduler.process_input_requests(scheduler.request_receiver.recv_requests())


def _slots(tree: Any, input_ids: Iterable[int]) -> torch.Tensor:
    """Return the pool slots of the longest cached prefix (0.5.22: behind a node handle)."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    match = tree.match_prefix(MatchPrefixParams(key=RadixKey(array("q", input_ids))))
    if hasattr(tree, "path_device_indices"):
        return tree.path_device_indices(match.last_device_node)
    return match.device_indices


def _with_adapters(adapters: Mapping[str, Path]) -> dict[str, Any]:
    """Return the server arguments for these adapters, as the server resolves them."""
    from sglang.srt.lora.lora_registry import LoRARef

    references = [
        LoRARef(lora_id=name, lora_name=name, lora_path=str(path), pinned=False)
        for name, path in adapters.items()
    ]
    return {"enable_lora": True, "lora_backend": "torch_native", "lora_paths": references}


# ---- the engine ----


def free_port() -> int:
    """Return a port that nobody uses now, below those that the system gives to whoever asks.

    A server binds it seconds later: one of the system's own could be gone by then.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class InProcessEngine:
    """One scheduler with its model, KV pool and prefix tree.

    Parameters
    ----------
    rank
        This process's tensor-parallel rank, for ``tp_size`` > 1: one engine a process, all with the
        same ``nccl_port``. Rank 0 takes the requests.
    adapters
        LoRA adapters by name, which is also their ``lora_id`` (``submit("a", ..., lora_id=name)``).
    server_args
        Fields of SGLang's ``ServerArgs`` over ``DEFAULTS``; ``model_path`` is required.
    """

    def __init__(
        self, *, rank: int = 0, adapters: Mapping[str, Path] | None = None, **server_args: Any
    ) -> None:
        self.outputs: dict[str, Output] = {}
        self.passes = 0
        load_plugins()
        if adapters:
            server_args = {**_with_adapters(adapters), **server_args}
        # SGLang would draw a port, from a generator that it seeds: workers side by side draw alike
        self.server_args = ServerArgs(**{**DEFAULTS, "nccl_port": free_port(), **server_args})
        _publish(self.server_args, rank)
        ports = PortArgs.init_new(self.server_args)
        try:
            self.scheduler = _new_scheduler(self.server_args, ports, rank)
        except BaseException:
            _leave_world()
            raise
        self.rank = rank
        self._inbox = _Inbox()
        self._wire()

    def _wire(self) -> None:
        """Put the inbox and the collector in the places of the sockets."""
        scheduler = self.scheduler
        for sender in (
            scheduler.ipc_channels.send_to_tokenizer,
            scheduler.ipc_channels.send_to_detokenizer,
        ):
            sender.send_output = self._collect
        if self.rank == 0:
            object.__setattr__(scheduler.request_receiver, "recv_from_tokenizer", self._inbox)

    # ---- requests ----

    def submit(
        self,
        rid: str,
        input_ids: Iterable[int],
        max_new_tokens: int = 8,
        custom_params: dict[str, Any] | None = None,
        sampling: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Send a greedy request that ignores the end of sequence.

        Parameters
        ----------
        rid
            Request id. SGLang aborts by prefix: aborting ``a`` also aborts ``a1``.
        input_ids
            Prompt tokens.
        max_new_tokens
            Output tokens.
        custom_params
            ``SamplingParams.custom_params``, the carrier of the hints.
        sampling
            More fields of ``SamplingParams`` (``json_schema``, ``temperature``, ...).
        fields
            More fields of ``TokenizedGenerateReqInput`` (``session_id``, ``extra_key``, ...).
        """
        parameters = SamplingParams(
            **{
                "max_new_tokens": max_new_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "custom_params": custom_params,
                **(sampling or {}),
            }
        )
        parameters.normalize(None)
        self.outputs[rid] = Output()
        self.send(
            io_struct.TokenizedGenerateReqInput(
                **{
                    "rid": rid,
                    "input_text": None,
                    "input_ids": array("q", input_ids),
                    "input_embeds": None,
                    "mm_inputs": None,
                    "token_type_ids": None,
                    "sampling_params": parameters,
                    "return_logprob": False,
                    "logprob_start_len": -1,
                    "top_logprobs_num": 0,
                    "token_ids_logprob": None,
                    "stream": False,
                    **fields,
                }
            )
        )

    def abort(self, rid: str = "", *, everything: bool = False) -> None:
        """Send an abort of the requests whose ids start with ``rid``, or of all."""
        self.send(io_struct.AbortReq(rid=rid, abort_all=everything))

    def send(self, message: Any) -> None:
        """Send any message of the tokenizer process; the next pass takes it in."""
        io_struct.sock_send(self._inbox, message)

    def _collect(self, message: Any, _request: Any = None) -> None:
        """Take what the scheduler sends to the detokenizer and to the tokenizer."""
        if isinstance(message, io_struct.AbortReq):
            output = self.outputs.setdefault(message.rid, Output())
            output.finish = message.finished_reason or {"type": "abort"}
            return
        if not isinstance(message, io_struct.BatchTokenIDOutput):
            return
        for i, rid in enumerate(message.rids):
            output = self.outputs.setdefault(rid, Output())
            output.token_ids.extend(message.output_ids[i])
            output.finish = message.finished_reasons[i] or output.finish
            output.cached_tokens = message.cached_tokens[i]
            output.retractions = message.retraction_counts[i]

    # ---- passes ----

    @property
    def idle(self) -> bool:
        """Nothing is left to do: no message, no request waiting, running or in flight."""
        return not len(self._inbox) and self.scheduler.is_fully_idle()

    def step(self) -> bool:
        """Run one pass of the normal loop by hand; return whether a batch ran."""
        if self.scheduler.enable_overlap:
            raise RuntimeError("step() drives the normal loop only: use run()")
        with torch.inference_mode():
            return self._step()

    def _step(self) -> bool:
        scheduler = self.scheduler
        _receive(scheduler)
        plan = scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )
        scheduler.running_batch = plan.running_batch
        batch = plan.batch_to_run
        if batch:
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
        else:
            scheduler.on_idle()
        scheduler.last_batch = batch
        scheduler.invariant_checker.self_check_during_busy()
        self.passes += 1
        return bool(batch)

    def run(
        self,
        on_pass: Callable[[InProcessEngine], object] | None = None,
        *,
        pass_limit: int = PASS_LIMIT,
    ) -> int:
        """Run SGLang's own loop, normal or overlap, until nothing is left to do.

        Parameters
        ----------
        on_pass
            Called before each pass takes in its messages (only on rank 0): may submit, abort and
            look. A true return keeps an idle engine running for another pass.
        pass_limit
            Passes after which the run counts as a livelock.

        Returns
        -------
        int
            Passes of this run. The last one was idle, so SGLang's own leak checks have run.

        Raises
        ------
        RuntimeError
            If the run takes more than ``pass_limit`` passes.
        """
        first = self.passes
        stopping = False

        def before_pass() -> None:
            nonlocal stopping
            if stopping:
                return
            self.passes += 1
            if self.passes - first > pass_limit:
                raise RuntimeError(f"no end after {pass_limit} passes")
            more = on_pass(self) if on_pass else None
            if not more and self.idle:
                stopping = True
                self.send(io_struct.ShutdownReq())

        self._inbox.before_poll = before_pass
        try:
            self.scheduler.run_event_loop()
        finally:
            self._inbox.rest()
            self.scheduler.gracefully_exit = False
        return self.passes - first

    # ---- looks and ends ----

    def cached_slots(self, input_ids: Iterable[int]) -> torch.Tensor:
        """Return the KV pool slots of the longest cached prefix of these tokens, in order."""
        return _slots(self.scheduler.tree_cache, input_ids)

    def check_idle(self) -> None:
        """Run SGLang's own idle checks: every token, slot and lock of the pools is accounted for.

        Raises
        ------
        AssertionError
            If the engine is not idle.
        ValueError
            If SGLang finds a leak.
        """
        assert self.idle, "requests are left"
        self.scheduler.on_idle()

    def close(self) -> None:
        """Tear down, so that another engine can be built in this process."""
        scheduler, self.scheduler = self.scheduler, None
        _leave_world()
        channels = scheduler.ipc_channels
        for channel in (channels.recv_from_tokenizer, channels.recv_from_rpc):
            if channel is not None:
                channel.context.destroy(linger=0)
        # the watchdog's sleeping thread holds the scheduler: leave it nothing to hold
        scheduler.__dict__.clear()

    def __enter__(self) -> InProcessEngine:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
