"""SPEC section 3: the score J of a candidate state, term by term, in seconds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from .expectation import Expectation, expected_path
from .state import Id, Request, State


@dataclass(frozen=True)
class Terms:
    """The five terms of the score, each as it enters J (weights included), in seconds."""

    admit: float
    reuse: float
    move: float
    redo: float
    revoke: float

    @property
    def score(self) -> float:
        """J = J_admit + J_reuse - J_move - J_redo - J_revoke."""
        return self.admit + self.reuse - self.move - self.redo - self.revoke

    def as_dict(self) -> dict[str, float]:
        """Give the terms by name."""
        return asdict(self)


class Scorer:
    """Values everything that can change in one state."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._expectations: dict[Id, Expectation] = {}
        self._successors = self._count_successors()
        self._backlog = {agent: self._weigh_backlog(agent) for agent in state.active}

    def age_factor(self, task: Id) -> float:
        """g_i(t) = 1 + rho max(t - tau_i, 0) / H_age (SPEC section 2).

        Raises
        ------
        ValueError
            If rho is positive and H_age is unknown.
        """
        settings = self.state.settings
        if settings.age_weight == 0.0:
            return 1.0
        if settings.age_scale_s is None:
            raise ValueError("age_scale_s is needed when age_weight is positive")
        age = max(self.state.now - self.state.tasks[task].arrival, 0.0)
        return 1.0 + settings.age_weight * age / settings.age_scale_s

    def expectation(self, task: Id) -> Expectation:
        """Find the expected longest path of a task as a function of hypothetical completions."""
        if task not in self._expectations:
            self._expectations[task] = Expectation(self.state.tasks[task], self.state.settings)
        return self._expectations[task]

    def gain(self, request: Request, completions: Collection[Request]) -> float:
        """Value g Delta(r | H), where H is what ``completions`` holds of the same task."""
        if self.state.settings.gain_model == "service":
            return self.worth(request)
        same_task = [other for other in completions if other.task == request.task]
        marginal = self.expectation(request.task).marginal(request, same_task)
        return self.scale(request.task) * marginal

    def worth(self, request: Request) -> float:
        """Give f w = f g u d: the expected service of a request, aged, hurried, by its backlog."""
        return self.scale(request.task) * request.expected_service_s * self._backlog[request.agent]

    def scale(self, task: Id) -> float:
        """Give g u, what the gains of a task are multiplied by."""
        return self.age_factor(task) * self.urgency(task)

    def urgency(self, task: Id) -> float:
        """Give u = (H_age / L) ** gamma; L: longest path of expected residuals, at least 1 s."""
        settings = self.state.settings
        if settings.urgency == 0.0 or not settings.age_scale_s:
            return 1.0
        path_s = max(expected_path(self.state.tasks[task]), 1.0)
        return float((settings.age_scale_s / path_s) ** settings.urgency)

    def is_overdue(self, task: Id) -> bool:
        """Say whether nothing may overtake the requests of a task."""
        limit, scale_s = self.state.settings.overtake_limit, self.state.settings.age_scale_s
        if limit == 0.0 or not scale_s:
            return False
        return self.state.now - self.state.tasks[task].arrival > limit * scale_s

    def is_firm(self, request: Request) -> bool:
        """Say whether a running request must not be preempted."""
        settings = self.state.settings
        spent_s = settings.decode_s_per_token * request.generated_tokens
        limit_s = settings.preempt_limit * request.expected_service_s
        return settings.preempt_limit > 0.0 and spent_s > limit_s

    def terms(
        self,
        resident: frozenset[Id],
        admit: Sequence[Request],
        gains: Sequence[float],
        preempt: Sequence[Request],
    ) -> Terms:
        """Score the state that serves ``admit`` under ``resident``; ``gains`` go with ``admit``."""
        return Terms(
            admit=sum(gains, 0.0),
            reuse=self.reuse(resident),
            move=self.move(resident, admit),
            redo=self.redo(preempt),
            revoke=sum((self.revoked(request) for request in preempt), 0.0),
        )

    def reuse(self, resident: frozenset[Id]) -> float:
        """J_reuse: reload times saved for stages that are about to become ready."""
        tokens = sum(self._successors.get(a, 0) * self.state.prefix[a] for a in resident)
        return self.state.settings.reuse_weight * self._reload_s(tokens)

    def move(self, resident: frozenset[Id], admit: Sequence[Request]) -> float:
        """J_move: every admitted task that needs an incoming prefix waits for all transfers.

        By `move_model` "once" the engine waits for each prefix that comes in, and will for each
        that leaves though requests of its agent are left.
        """
        incoming = resident - self.state.resident
        outgoing = self.state.resident - resident
        waiting_tasks = {request.task for request in admit if request.agent in incoming}
        tokens = sum(self.state.prefix[a] for a in incoming | outgoing)
        waits = len(waiting_tasks)
        if self.state.settings.move_model == "once":
            again = outgoing & set(self.state.active)
            tokens = sum(self.state.prefix[a] for a in again | (incoming if waits else set()))
            waits = 1
        return self.state.settings.move_weight * (waits * self._reload_s(tokens))

    def redo(self, preempt: Sequence[Request]) -> float:
        """J_redo: the cost of computing again what preemption throws away, by `redo_model`."""
        settings = self.state.settings
        if settings.gain_model == "service":
            greatest = max(self._backlog.values(), default=1.0)
            return sum((greatest * (self.scale(r.task) * self._redo([r])) for r in preempt), 0.0)
        return self._redo(preempt)

    def _redo(self, preempt: Sequence[Request]) -> float:
        settings = self.state.settings
        if settings.redo_model == "kept":
            cost = 0.0
        elif settings.redo_model == "prefill":
            lengths = [request.input_tokens + request.generated_tokens for request in preempt]
            cost = sum(settings.prefill_fixed_s + settings.prefill_s_per_token * n for n in lengths)
        else:
            cost = settings.decode_s_per_token * sum(r.generated_tokens for r in preempt)
        return settings.redo_weight * cost

    def revoked(self, request: Request) -> float:
        """Value J_revoke of one preemption: the stored credit, aged with its task if so set.

        Where gains are services it is what admitting the request would gain now.
        """
        if self.state.settings.gain_model == "service":
            return self.worth(request)
        at_admission = request.age_factor_at_admission
        if not self.state.settings.age_credit or at_admission is None:
            return request.credit
        return request.credit * max(1.0, self.age_factor(request.task) / at_admission)

    def _weigh_backlog(self, agent: Id) -> float:
        """Give f = 1 + nu (reservations of an agent's requests) / (room beside its prefix)."""
        settings = self.state.settings
        requests = [r for r in self.state.waiting + self.state.running if r.agent == agent]
        tokens = sum(r.kv_tokens for r in requests if not self.state.never_fits(r))
        if settings.backlog_weight == 0.0 or tokens == 0:
            return 1.0
        room = settings.kv_capacity_tokens - self.state.prefix[agent]
        return 1.0 + settings.backlog_weight * (tokens / room)

    def _reload_s(self, tokens: int) -> float:
        settings = self.state.settings
        return settings.kv_bytes_per_token * tokens / settings.swap_bytes_per_s

    def _count_successors(self) -> dict[Id, int]:
        """n_a: stages of each agent whose only unfinished predecessor is running now."""
        running = {(request.task, request.stage) for request in self.state.running}
        count: dict[Id, int] = {}
        for task in self.state.tasks.values():
            for index, stage in enumerate(task.stages):
                if stage.completed or (task.id, index) in running:
                    continue
                unfinished = {v for v in stage.after if not task.stages[v].completed}
                if len(unfinished) == 1 and (task.id, unfinished.pop()) in running:
                    count[stage.agent] = count.get(stage.agent, 0) + 1
        return count
