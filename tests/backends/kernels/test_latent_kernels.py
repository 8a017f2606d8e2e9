"""Times of attention over latents and over compressed keys, beside what bounds them."""

from __future__ import annotations

import pytest

import llmir
from llmir.backends.kernels.latent import AbsorbedAttention, LatentShape
from llmir.hw import library


@pytest.mark.parametrize("again", [0.1, 1])
def test_of_a_window_no_more_is_read_again_than_its_queries_see(again: float) -> None:
    """4,096 queries of a window of 128 see 4,096 · 128 keys of 1,024 bytes, however long the cache is."""
    device = library.load("b200")
    kernel = AbsorbedAttention(again=again, launch_us=0.5, block_us=0.05)
    times = [kernel.seconds(device, LatentShape(1, 4096, c, 16, 512, 0, 128)) for c in (0, 4096, 1 << 20)]
    slow = 4096 * 128 * 1024 / device.memory_Bps / kernel.bandwidth
    assert max(times) <= min(times) + 1.05 * slow


@pytest.mark.parametrize("prompt", [8192, 32768])
def test_a_prompt_of_shared_keys_is_no_dozen_times_its_roofline(prompt: int) -> None:
    """Kernels for prompts share keys among positions, which a block for each position does not."""
    program = llmir.run(llmir.load("deepseek-v4-flash"), f"{llmir.pipeline_of()},shard{{tp=4}}")
    report = llmir.analyze(program, "b200", batch=4, new=prompt)
    path = "period.compressed_128_moe_layer.attention"
    (cost,) = (op for op in report.ops if op.name == path)
    assert cost.time_s < 6 * cost.ideal_time_s
    found = llmir.explain(report, path)
    assert found.kernel is not None and found.kernel.strange > 0.1
    assert found.kernel.family in str(found.basis)
    assert cost.error > found.kernel.error + 0.1


@pytest.mark.parametrize("model", ["deepseek-v3", "glm-5"])
@pytest.mark.parametrize("context", [512, 8192])
def test_without_the_scores_in_memory_naive_decode_takes_no_longer(model: str, context: int) -> None:
    program = llmir.load(model)
    fused, eager = (
        llmir.analyze(llmir.run(program, passes), "h200", new=1, context=context)
        for passes in ("fuse-attention,fuse,dce", "fuse,dce")
    )
    assert fused.time_s < eager.time_s
