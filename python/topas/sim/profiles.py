"""What a policy is told about a workload beforehand: profiled services from the cost model."""

from __future__ import annotations

from typing import Any

from topas.policies.base import Setup, StageProfile
from topas.sim.cost import EngineCosts
from topas.sim.options import EngineOptions
from topas.sim.workload import StageShape, WorkflowShape, Workload

__all__ = ["config_fields", "setup_of"]


def setup_of(workload: Workload, costs: EngineCosts, options: EngineOptions | None = None) -> Setup:
    """Agents and workflows with profiled services, and what an evicted prefix costs.

    The service of one request is that of the stage's expected lengths in a typical batch
    (:meth:`EngineCosts.request_s`), that of the stage is so much for each expected round. No
    task's own lengths enter. Prefixes count in whole pages.
    """
    workflows = {
        name: tuple(_profile(stage, shape, workload, costs) for stage in shape.stages)
        for name, shape in workload.workflows.items()
    }
    loads = options is not None and options.host_cache_tokens != 0
    cost_s = costs.swap_s if loads else costs.prefill_s
    reload_s = {agent: cost_s(tokens) for agent, tokens in workload.agents.items()}
    page = 1 if options is None else options.page_size
    agents = {agent: -(-tokens // page) * page for agent, tokens in workload.agents.items()}
    return Setup(agents, workflows, reload_s)


def _profile(
    stage: StageShape, shape: WorkflowShape, workload: Workload, costs: EngineCosts
) -> StageProfile:
    request_s = costs.request_s(
        workload.agents[stage.agent], stage.input_tokens, stage.output_tokens
    )
    after = tuple(shape.stages[before].name for before in stage.after)
    return StageProfile(stage.name, stage.agent, after, stage.rounds * request_s, request_s)


def config_fields(workload: Workload, costs: EngineCosts, options: EngineOptions) -> dict[str, Any]:
    """The fields of :class:`topas.Config` that describe the engine.

    ``decode_s_per_token`` is the step of a typical batch whose requests hold the workload's mean
    context.
    """
    stages = [stage for shape in workload.workflows.values() for stage in shape.stages]
    contexts = [
        workload.agents[stage.agent] + stage.input_tokens + 0.5 * stage.output_tokens
        for stage in stages
    ]
    mean = sum(contexts) / len(contexts) if contexts else 0.0
    return {
        "kv_capacity_tokens": costs.kv_capacity // options.page_size * options.page_size,
        "kv_bytes_per_token": costs.kv_bytes_per_token,
        "swap_bytes_per_s": costs.swap_bytes_per_s,
        "decode_s_per_token": costs.typical_step_s(mean),
        "prefill_fixed_s": costs.prefill_fixed_s,
        "prefill_s_per_token": costs.prefill_s_per_token,
        "max_running_requests": options.max_running,
        "redo_model": options.redo_model,
    }
