"""Padded vocabularies: bytes and FLOPs of what engines hold, and the meaning and parameters of the model."""

from __future__ import annotations

import pytest

import llmir
from llmir.base.errors import PassError, VerifyError
from llmir.ir.tools.text import parse_program, print_program
from llmir.ir.tools.verify import verify

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "num_attention_heads": 4}


def model(vocabulary: int, **more: object) -> llmir.Program:
    """Two layers of a small Llama."""
    config = {"architectures": ["LlamaForCausalLM"], **SIZES, "dtype": "bfloat16", **more}
    return llmir.load({**config, "vocab_size": vocabulary})


# 50,304 is what GPT-2's table is padded to, 1,024 the example of vLLM's VocabParallelEmbedding.
@pytest.mark.parametrize(("vocabulary", "padded"), [(50_257, 50_304), (1010, 1024), (1, 64), (65, 128)])
@pytest.mark.parametrize("tied", [False, True])
def test_tables_have_the_rows_of_engines_and_the_parameters_of_the_model(
    vocabulary: int, padded: int, tied: bool
) -> None:
    program = model(vocabulary, tie_word_embeddings=tied)
    after = llmir.run(program, "pad-vocab")
    assert after.parameters_by_kind == program.parameters_by_kind
    assert after.active_parameters == program.active_parameters
    steps = [
        llmir.analyze(p, "a100", batch=3, context=5, estimation=llmir.Estimation(cost="ideal"))
        for p in (program, after)
    ]
    tables = 1 if tied else 2
    assert steps[1].weight_bytes - steps[0].weight_bytes == tables * 2 * (padded - vocabulary) * 16
    assert steps[1].matmul_flops - steps[0].matmul_flops == 2 * 3 * (padded - vocabulary) * 16
    assert after.notes == (f"vocabulary of {vocabulary:,} padded to {padded:,}, a multiple of 64",)
    assert parse_program(print_program(after)) == after


@pytest.mark.parametrize(
    "passes", ["pad-vocab", "pad-vocab{to=6},shard{tp=4}", "shard{tp=2},pad-vocab{to=40}"]
)
@pytest.mark.parametrize("more", [{}, {"tie_word_embeddings": True}])
def test_the_model_means_what_it_meant(passes: str, more: dict[str, object]) -> None:
    program = model(83, **more)
    after = llmir.run(program, passes)
    found = llmir.equivalent(program, after)
    assert found, found
    assert str(after["main"].type(after["main"].outputs[0])) == "bf16[B, 83]"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma-2-2b", "gpt-j-6b"])  # logits that are capped, and a head with biases
def test_heads_of_other_families_too(name: str) -> None:
    program = llmir.load(name)
    after = llmir.run(program, "pad-vocab{to=999},shard{tp=2}")
    assert after.parameters == program.parameters
    assert llmir.equivalent(program, after)


def test_a_rank_holds_its_share_of_the_padded_table() -> None:
    program = llmir.run(model(50_257), "pad-vocab,shard{tp=4}")
    assert program["main"]["embed.weight"].results[0].local(program.mesh).shape == (50_304 // 4, 16)
    assert len(program.notes) == 1  # and `shard` pads no further


def test_engines_pad_that_do() -> None:
    assert "pad-vocab" in llmir.pipeline_of("vllm") and "pad-vocab" in llmir.pipeline_of("sglang")
    assert "pad-vocab" not in llmir.pipeline_of("trtllm") + llmir.pipeline_of("hf-transformers")


def test_what_is_a_multiple_stays() -> None:
    program = model(128)
    assert llmir.run(program, "pad-vocab") is program
    with pytest.raises(PassError, match=r"pad-vocab: to 32: .* has no vocabulary to pad"):
        llmir.run(program, "pad-vocab{to=32}")


@pytest.mark.parametrize(
    ("axes", "spare", "expected"),
    [
        ("vocab, embed", -14, "fewer than its 1,024 places, got -14"),
        ("vocab, embed", 1024, "fewer than its 1,024 places, got 1,024"),
        ("width, embed", 14, "none, without an axis vocab or expert, got 14"),
    ],
)
def test_only_places_that_there_are_can_be_spare(axes: str, spare: int, expected: str) -> None:
    text = print_program(llmir.run(model(1010, tie_word_embeddings=True), "pad-vocab"))
    stated = next(line for line in text.splitlines() if "spare=14" in line)
    other = stated.replace("vocab, embed", axes).replace("spare=14", f"spare={spare}")
    with pytest.raises(VerifyError, match=f"spare: expected {expected}"):
        verify(parse_program(text.replace(stated, other)))
