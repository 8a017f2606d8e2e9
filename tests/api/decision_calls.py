"""Functions that decide something, as `public_calls` has other things that are public."""

from __future__ import annotations

import llmir

from .public_calls import CALLS, JOB, OVER, PROGRAM

GOALS = {"max_ttft": 1.0, "max_tpot": "1s"}
DRAFTS = llmir.Drafts(2, 0.5, verify=PROGRAM)
COME = llmir.Traffic(rate=1, prompt=8, generate=4, requests=100)
ANSWERS = {
    "largest": (llmir.largest, {**OVER, **JOB, **GOALS, "lengths": "fixed"}),
    "speculate": (llmir.speculate, {"job": llmir.workload(PROGRAM, "h100"), "drafts": DRAFTS}),
    "beam_search": (llmir.beam_search, {"job": llmir.workload(PROGRAM, "h100"), "beams": 2}),
    "plan": (
        llmir.plan,
        {
            **{"model": PROGRAM, "hw": "h100-sxm", "traffic": COME, "gpus": 1, **GOALS, "precision": None},
            **{"chunk": 2048, "batch": 8, "memory": None, "servers": None, "reserve": None},
            **{"drafts": None, "progress": None, "estimation": None},
        },
    ),
    "plan of traffic": (
        lambda **x: llmir.plan(PROGRAM, traffic=llmir.Traffic(**x), gpus=1, batch=8, chunk=2048),
        {"rate": 1, "prompt": 8, "generate": 4, "requests": 100, "seed": 0, "prefix_hits": 0.5},
    ),
}
CALLS.update(ANSWERS)
