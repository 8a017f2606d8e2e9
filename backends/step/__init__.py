"""One step of a program on a device: its rows with times, bytes and bounds, its memory, its timeline.

Start with `report.py` (`Report`, the result of `llmir.analyze`) and `evaluate.py` (`StepEvaluator`, which
evaluates all op times of a step at a point or on a grid). `sizes.py` checks the sizes of a step,
`timing.py` sends micro-batches through pipeline stages, `facts.py` lists weights and precision. For many
evaluations: `functions.py` and `compile.py` (a step as code), `program_batch.py` (many programs at once)
and `composition.py` (steps that mix prompts and decodes, for the simulator).

May import: `llmir.base`, `llmir.ir`, `llmir.hw`, and the packages tape, work, kernels, cost and memory.
"""
