"""Between SGLang's scheduler and the core: its queue becomes events, a decision what it may do.

No policy is here. One scheduling event, in the order of :meth:`Bridge.schedule`:

1. what happened since the last pass has become events of the core (arrivals, ends, aborts);
2. if anything did, the core decides, else the plan of the last decision stands;
3. preempted requests leave the running batch; SGLang sees only the admitted ones of its queue;
4. SGLang admits what fits, by its own accounts; the queue gets back what was held, in its order;
5. preempted requests return to the queue, never in the pass that threw them out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import topas
from topas.sglang.clock import RankClock
from topas.sglang.costs import CostMeter
from topas.sglang.heads import HeadTable
from topas.sglang.leaders import Leaders
from topas.sglang.ledger import Ledger
from topas.sglang.metrics import Counts
from topas.sglang.once import OnceLog
from topas.sglang.residency import residency_of
from topas.sglang.roster import Entry, Roster
from topas.sglang.settings import Settings
from topas.sglang.view import View

__all__ = ["Bridge"]

logger = logging.getLogger(__name__)

#: What SGLang's ``_get_new_batch_prefill_raw`` returns.
Prefill: TypeAlias = tuple[Any, Any]

_HOUSEKEEPING_S = 10.0
_NAP_S = 0.001  # when requests wait and the engine has nothing to do


class _NothingAdmitted(topas.StateError):
    """The core would leave the engine without work."""


class Bridge:
    """Drives one scheduler of SGLang.

    Parameters
    ----------
    view : View
        The scheduler.
    settings : Settings
        What the user wants.
    clock : RankClock
        The time that all ranks share.
    counts : Counts
        Where things are counted.
    """

    def __init__(self, view: View, settings: Settings, clock: RankClock, counts: Counts) -> None:
        self.view = view
        self.counts = counts
        self.on_decision: Callable[[topas.Decision], None] = lambda decision: None
        self._settings = settings
        self._clock = clock
        self._costs = CostMeter(view.delay, stalls=settings.moves_once, tell=counts.set_profile)
        self.residency = residency_of(view, settings, clock, self._costs)
        self._heads = HeadTable(settings.min_prefix_tokens, self.view.page_size)
        self._unmanaged: list[Any] = []  # waiting, to be answered without asking the core
        self._due = False  # something has happened since the last decision
        self._look_around = False  # requests may have gone without a word
        self._broken: Exception | None = None
        self._log = OnceLog(logger, "this pass is left to SGLang's own policy")
        self._off = False  # not even falling back works
        self._decided_s = self._kept_house_s = clock.now
        self._new_core()
        self._roster = Roster(self.view, clock, self.ledger)

    def _new_core(self) -> None:
        """A core that knows the workflows and nothing else."""
        self.core = topas.Scheduler(self._config())
        self.ledger = Ledger(
            self.core,
            self._heads,
            profile_s=self._costs.request_s,
            idle_expiry_s=self._settings.idle_expiry_s,
            on_task_end=self._task_ended,
        )
        for fields in self._settings.workflows:
            self.ledger.register(topas.Workflow.from_dict(fields))
        self._leaders = Leaders(
            lambda entry: self.ledger.agent_of(entry.id),
            lambda agent: self.ledger.agents.is_held(agent, self.view.holds),
            self.residency.is_coming,
        )

    def _config(self) -> topas.Config:
        return self._settings.config(
            capacity=self.view.capacity_tokens,
            max_running_requests=self.view.max_running_requests,
            costs=self._costs.config_fields(),
        )

    # -- events of the engine

    def queued(self, req: Any) -> None:
        """SGLang has put a request into its queue: a new one, or one that it threw out itself."""
        self.view.defer(req)  # if it comes while SGLang admits: no part of this pass's plan
        self._due = self._clock.busy = True
        if self._off:
            return
        try:
            entry = self._roster.get(req)
            if entry is not None:
                self._roster.stop(entry)
            elif self.view.is_unmanaged(req):
                self._unmanaged.append(req)
            else:
                self._roster.add(req)
        except Exception as error:
            self._broken = error

    def processed(self, batch: Any) -> None:
        """The results of a batch are in: some of its requests may have finished."""
        if self._off:
            return
        try:
            self.residency.computed()
            for req in batch.reqs:
                if req.finished() and (entry := self._roster.get(req)) is not None:
                    self._roster.leave(entry, aborted=self.view.was_aborted(req))
                    self._due = True
        except Exception as error:
            self._broken = error

    def aborted(self) -> None:
        """Requests may have left from anywhere without a result."""
        self._look_around = True

    # -- one pass

    def schedule(self, admit: Callable[[], Prefill], running_batch: Any) -> Prefill:
        """One pass: SGLang's own admission, over what the core lets it see.

        Parameters
        ----------
        admit : callable
            SGLang's ``_get_new_batch_prefill_raw`` for this pass.
        running_batch : ScheduleBatch
            The requests that run; those preempted are taken out.

        Returns
        -------
        tuple
            What ``admit`` returns: the new batch or ``None``, and the running batch.
        """
        begin = time.perf_counter()
        self.counts.passes += 1
        self._costs.tick(self._clock.now)
        self._land(running_batch)
        has_work = self._due or self._clock.busy or self._broken is not None
        if not has_work and self.view.is_empty(running_batch):
            return admit()
        victims = self._attempt(self._plan, running_batch)
        if victims:
            self.view.release(running_batch, victims)
        shown = None if victims is None else self._attempt(self._shown, running_batch)
        self.view.show(self.view.waiting if shown is None else shown, running_batch)
        self.counts.spent(time.perf_counter() - begin)
        try:
            result = admit()
        finally:
            begin = time.perf_counter()
            shown, admitted = self.view.restore()
            for req in victims or ():
                self.view.requeue(req)
        try:
            self._note(admitted, shown, result)
        except Exception as error:
            self._broken = error
        self.counts.spent(time.perf_counter() - begin)
        if self.view.waiting and not result[1].reqs and result[0] is None:
            time.sleep(_NAP_S)
        return result

    def _land(self, running_batch: Any) -> None:
        try:
            self.residency.land(self.view.needs(running_batch), self._roster.in_use)
        except Exception as error:
            self._broken = error  # the pass is SGLang's, and nothing stays pinned

    def flushed(self) -> None:
        """SGLang has emptied its tree and its pool."""
        try:
            self.residency.flushed()
        except Exception as error:
            self._broken = error

    def _attempt(self, step: Callable[[Any], list[Any]], running_batch: Any) -> list[Any] | None:
        """Take a step of ours; ``None`` if it fails: the pass is SGLang's then."""
        try:
            return step(running_batch)
        except Exception as error:
            self._fall_back(error, running_batch)
            return None

    def _plan(self, running_batch: Any) -> list[Any]:
        """Ask the core if there is a reason to; return the requests to throw out."""
        if self._off:
            raise topas.StateError("topas is off")
        if self._broken is not None:
            raise self._broken
        now = self._clock.now
        if self._look_around or now - self._kept_house_s > _HOUSEKEEPING_S:
            self._keep_house(now, running_batch)
        idle = not self.view.running(running_batch)
        asks_again = self.view.waiting and now - self._decided_s > self._settings.reask_s
        if not (self._due or (idle and self._roster) or asks_again):
            return []
        victims = self._decide(now)
        if idle and self._roster and not self._roster.planned and not self._unmanaged:
            raise _NothingAdmitted("nothing runs and nothing is admitted")
        return victims

    def _decide(self, now: float) -> list[Any]:
        self._decided_s = now
        if self._costs.has_changed:
            self.core.reconfigure(self._config())
        self._roster.tell_progress()
        decision = self.ledger.decide(now, self.residency.holds)
        self._roster.check(decision.admit, decision.preempt)
        victims = self._roster.apply(decision.admit, decision.preempt, self._may_go)
        while self._roster.planned and self.core.usage().kv_tokens > self.view.capacity_tokens:
            self._roster.stop(next(reversed(self._roster.planned.values())))  # one above stayed
        self.residency.decided(self._roster.agents(), self.ledger.agents)
        self._due = bool(decision.admit and self._settings.policy.get("action_cap"))
        self._count(decision)
        return victims

    def _may_go(self, entry: Entry, others: int) -> bool:
        """Whether a request can be preempted beside so many others without harm or livelock."""
        if entry.running:
            return entry.has_gained and self.view.can_be_preempted(entry.req, others)
        return not self.residency.is_promised(self.ledger.agent_of(entry.id))

    def _shown(self, running_batch: Any) -> list[Any]:
        """What SGLang may admit now, in that order."""
        self.residency.enter(is_idle=not self.view.running(running_batch))
        if self._unmanaged or self._roster.planned:
            there = {id(req) for req in self.view.waiting}
            self._unmanaged = [req for req in self._unmanaged if id(req) in there]
            self._roster.keep_planned(there)
        chosen = self._leaders.select(self._roster.planned.values())
        return self._unmanaged + [entry.req for entry in chosen]

    def _note(self, admitted: set[int], shown: list[Any], result: Prefill) -> None:
        """What SGLang made of it."""
        for req in shown:
            if id(req) in admitted and (entry := self._roster.get(req)) is not None:
                self._roster.start(entry)
        if admitted:
            self.residency.admitted()
        batch, running = result
        stuck = not admitted and batch is None and self.view.chunked is None
        if stuck and self._roster.refuse(shown):
            self.counts.refused()  # no room; the core is asked when there may be again
            self.residency.give_way(self._roster.in_use())
        if batch is not None or running.reqs:
            self._costs.launched(*self.view.load(batch, running))
        self._clock.busy = bool(self._roster) or self.ledger.tasks > 0

    # -- when things go wrong, and now and then

    def _fall_back(self, error: Exception, running_batch: Any) -> None:
        """Leave the pass to SGLang; the core starts afresh from what is there."""
        if self._off:
            return
        try:
            self.counts.fell_back(self._log(error))
            self._due = True
            if isinstance(error, _NothingAdmitted):
                self._look_around = True
                self.residency.give_way(self._roster.in_use())
                return
            self._broken = None
            self.residency.reset()
            errors = self.ledger.hint_errors
            self._new_core()
            self._unmanaged += self._roster.tell(self.ledger, self.view.running(running_batch))
            self.ledger.hint_errors = errors
        except Exception:
            self._off = True
            self.residency.reset()
            logger.critical("topas: off from now on: SGLang's own policy runs", exc_info=True)

    def _keep_house(self, now: float, running_batch: Any) -> None:
        self._look_around, self._kept_house_s = False, now
        self._due |= self._roster.keep(self.view.everyone(running_batch))
        if self.ledger.expire(now):
            self.counts.set_gauges(**self.ledger.gauges())

    def _count(self, decision: topas.Decision) -> None:
        self.counts.decided(self.ledger.decision_s, len(decision.admit), len(decision.preempt))
        self.counts.hints_wrong(self.ledger.hint_errors)
        self.counts.set_gauges(**self.ledger.gauges())
        self.residency.report(self.counts)
        self.on_decision(decision)

    def _task_ended(self, workflow: str | None, seconds: float) -> None:
        self._costs.task_took(seconds)
        self.counts.task_ended(workflow, seconds)
