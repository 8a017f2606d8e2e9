"""A workload, and a step, as JSON holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from llmir.backends.step.facts import weights
from llmir.backends.step.placement import links
from llmir.backends.step.precision import precision
from llmir.backends.work.nodes import nodes

from .spending import spending

if TYPE_CHECKING:
    from llmir.backends.step.report import Report

    from .workload import Workload


def document(job: Workload, phases: Mapping[str, Report | None]) -> dict[str, Any]:
    """The report of a workload, and its steps by phase; `schema_version` 2."""
    program, model, tokens = job.program, job.prefill.plan.model, not job.program.patches
    return {
        "schema_version": 2,
        "model": {
            "name": program.name,
            "architecture": program.facts.get("architecture"),
            "layers": program.facts.get("layers"),
            "parameters": program.parameters,
            "active_parameters": program.active_parameters,
            "weight_bytes": sum(w.bytes for w in weights(program)),
            "weights": [vars(w) for w in weights(program)],
        },
        "hardware": {
            "name": job.device.name,
            "devices": program.devices,
            "cluster": model.device.node.name if model.device.node else None,
            "nodes": nodes(program, model.device),
            "links": [
                {"name": name, "bytes_per_s": link.Bps, "latency_s": link.latency_s}
                for name, link in links(program, model.device).items()
            ],
        },
        "precision": precision(program),
        "workload": {
            **{name: asked if tokens or name == "batch" else None for name, asked in job.asked.items()},
            "chunk_by": job.budget_by,
            **({"image_tokens": program.image_tokens} if job.images else {}),
        },
        "parallel": asdict(program.parallelism),
        "micro_batches": program.micro_batches,
        "cache_policy": job.cache_policy,
        "cost_model": job.prefill.cost_model,
        "engine": model.engine or getattr(model, "kernels", None),
        "engine_version": (model.runs.range or None) if model.runs else None,
        "fits": job.fits,
        "max_batch": job.max_batch,
        "memory": job.memory.to_dict(),
        "ttft_s": job.ttft_s if tokens else None,
        "ttft_mean_s": job.ttft_mean_s if tokens else None,
        "tpot_s": job.tpot_s,
        "e2e_s": job.e2e_s,
        "prefill_tokens_per_s": job.prefill_tokens_per_s if job.e2e_s and tokens else None,
        "output_tokens_per_s": job.output_tokens_per_s if job.e2e_s and tokens else None,
        "busy_output_tokens_per_s": job.busy_output_tokens_per_s if job.e2e_s and tokens else None,
        **spending(job).to_dict(),
        "serving": None,
        "notes": list(job.notes),
        "phases": {name: step and step.to_dict() for name, step in phases.items()},
    }
