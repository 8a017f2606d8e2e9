"""The whole loop on this machine: small Llamas, predicted from its calibration and run by transformers.

llmir calibrate --run -o here
python benchmarks/loop.py here/local-cpu.yaml
"""

from __future__ import annotations

import sys
from typing import Any

import llmir
from llmir.backends.silicon.measure import engine_cpu
from llmir.backends.silicon.measure.kernels import EagerMachine

SIZES: tuple[dict[str, Any], ...] = (
    {"layers": 4, "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8},
    {"layers": 8, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16},
)
VOCABULARY, KV_HEADS = 32000, 4
# batch, tokens of the prompt; decode has as many cached.
POINTS = ((1, 64), (1, 256), (1, 1024), (4, 256))
LINE = "{:<28} {:<8} {:>5} {:>6} {:>9} {:>9} {:>7} {:>9}"


def main(device: str) -> None:
    machine = EagerMachine(each_s=1.0)
    print(LINE.format("model", "phase", "batch", "tokens", "measured", "predicted", "error", "roofline"))
    errors = []
    for size in SIZES:
        sizes = {**size, "vocab_size": VOCABULARY, "num_key_value_heads": KV_HEADS}
        config = engine_cpu.config(**sizes)
        program = llmir.run(llmir.load(config), llmir.pipeline_of())
        model = engine_cpu.load(machine, config)
        if model is None:
            sys.exit("transformers is needed to run what was predicted")
        name = f"{size['layers']} layers, hidden {size['hidden_size']}"
        for batch, tokens in POINTS:
            prefill = {"batch": batch, "new": tokens}
            decode = {"batch": batch, "new": 1, "context": tokens}
            measured = model.prefill(batch, tokens)[0], model.decode(batch, tokens)
            for phase, at, took in zip(("prefill", "decode"), (prefill, decode), measured, strict=True):
                predicted, least = (
                    llmir.analyze(program, device, **at, estimation=llmir.Estimation(cost=cost)).time_s
                    for cost in ("calibrated", "ideal")
                )
                errors.append(abs(predicted / took - 1))
                times = [f"{1e3 * s:.2f} ms" for s in (took, predicted)]
                roofline = f"{1e3 * least:.2f} ms"
                error = f"{100 * (predicted / took - 1):+.1f}%"
                print(LINE.format(name, phase, batch, tokens, *times, error, roofline))
    print(f"mean error {100 * sum(errors) / len(errors):.1f}%")


if __name__ == "__main__":
    main(*sys.argv[1:])
