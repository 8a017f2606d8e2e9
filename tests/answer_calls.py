"""Functions that decide something, as `public_calls` has other things that are public."""

from __future__ import annotations

import llmir

from .public_calls import CALLS, JOB, LIMITS, PRICING, PROGRAM

GOALS = {"max_ttft": 1.0, "max_tpot": "1s"}
DRAFTS = {"draft_tokens": 2, "acceptance": 0.5, "draft": None}
ANSWERS = {
    "largest": (llmir.largest, {"program": PROGRAM, "hw": "h100", **JOB, **LIMITS, **PRICING, **GOALS}),
    "speculate": (llmir.speculate, {"job": llmir.workload(PROGRAM, "h100"), "verify": PROGRAM, **DRAFTS}),
    "beam_search": (llmir.beam_search, {"job": llmir.workload(PROGRAM, "h100"), "beams": 2}),
    "plan": (
        llmir.plan,
        {
            **{"model": PROGRAM, "hw": "h100-sxm", "rate": 1, "prompt": 8, "generate": 4, "gpus": 1, **GOALS},
            **{
                "weights": "",
                "chunk": 2048,
                "batch": 8,
                "price": {"h100": 3.0},
                "engine": None,
                "emit": None,
            },
            **{
                "requests": 100,
                "seed": 0,
                "link": None,
                "prefix_hits": 0.5,
                "router": "random",
                "progress": None,
            },
            **{"verify": None, "draft_tokens": None, "acceptance": None, "draft": None},
        },
    ),
}
CALLS.update(ANSWERS)
