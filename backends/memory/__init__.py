"""Memory of a rank: tensors in use, KV caches, and the number of requests and tokens that fit.

Start with `liveness.py` (`stage_memories`: weights, caches and the peak of activations in a step), then
`caches.py` (the cache allocation of an engine: exact bytes, pages per layer, or one pool of pages) and
`kv_capacity.py` (`KvPool`: the memory that an engine's rule leaves for caches, in tokens and requests).
`transfer.py` has the bytes and seconds of sending caches over a link.

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages `tape`, `work`, `kernels` and `cost`.
"""
