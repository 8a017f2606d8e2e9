"""Discrete-event simulation of serving: queues, batches, KV blocks and preemptions, step by step.

Start with `engine.py` (`Profile.run` simulates a load on one engine, `Pools.run` on prefill and decode
servers) and `server.py` (`Server`, one engine that runs step after step under a `Policy`). `policies`
contains the schedulers of four engines. `step_times.py` estimates the seconds of each step,
`load.py` has the requests, and `kv_blocks.py` has paged blocks and the prefix cache. `router.py` and
`cluster.py` run several servers, and `result.py` computes latencies and rates.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages tape, work, kernels, cost, memory, step,
request and compare.
"""
