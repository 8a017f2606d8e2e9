"""Memory of a rank: live tensors, KV caches, and how many requests and tokens fit.

Start with `liveness.py` (`stage_memories`: weights, caches and the peak of activations in a step), then
`caches.py` (how an engine reserves a cache: exact bytes, pages per layer, or one pool of pages) and
`kv_capacity.py` (`KvPool`: the room that an engine's rule leaves for caches, in tokens and requests).
`transfer.py` has the bytes and seconds of sending caches over a link.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages `tape`, `work`, `kernels` and `cost`.
"""
