"""Families whose queries see chosen or compressed keys: what they hold, and configs that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.errors import ConfigError
from llmir.frontends.weights import expected

from .newest_cases import CASES

GLM = "glm-5"


def config(case: str, **changes: object) -> dict[str, Any]:
    return {**CASES[case], **changes}


# As transformers' own classes have them, with experts one by one as checkpoints do.
@pytest.mark.parametrize(
    ("case", "shapes"),
    [
        (
            GLM,
            {
                "self_attn.indexer.wq_b.weight": (128, 10),
                "self_attn.indexer.wk.weight": (8, 24),
                "self_attn.indexer.k_norm.bias": (8,),
                "self_attn.indexer.weights_proj.weight": (16, 24),
                "self_attn.kv_a_proj_with_mqa.weight": (12, 24),
                "mlp.experts.7.down_proj.weight": (24, 12),
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_lie_in_checkpoints_as_the_class_has_them(
    case: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    found = expected(llmir.load(CASES[case]))
    assert {name: found[f"model.layers.2.{name}"].shape for name in shapes} == shapes


WRONG: list[tuple[str, dict[str, object], str]] = [
    (GLM, {"indexer_types": ["full", "shared", "full"]}, '$.indexer_types[1]: "shared" is not modelled'),
    (GLM, {"index_topk_freq": 4}, "$.index_topk_freq: 4 is not modelled (keys that another layer's indexer"),
    (GLM, {"index_topk_pattern": "FSF"}, '$.index_topk_pattern: "FSF" is not modelled'),
    (GLM, {"mlp_layer_types": ["dense"]}, "$.mlp_layer_types: expected dense or sparse for each of 3 layers"),
    (GLM, {"q_lora_rank": None}, "$.q_lora_rank: expected a positive integer, got null"),
    (GLM, {"index_topk": 0}, "$.index_topk: expected a positive integer, got 0"),
]


@pytest.mark.parametrize(("case", "changes", "says"), WRONG, ids=[w[2] for w in WRONG])
def test_a_config_that_cannot_be_is_an_error_that_names_its_field(
    case: str, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        llmir.load(config(case, **changes))
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


def test_glm_5_keeps_latents_and_an_index_of_each_token() -> None:
    program = llmir.load("GLM-5")
    assert program.kv_cache_bytes_per_token == 78 * 2 * (512 + 64 + 128)
    assert round(program.active_parameters / 1e9) == 42  # the publisher says 40B, without embeddings
    step = llmir.analyze(llmir.run(program, llmir.DEFAULT_PIPELINE), "h200", batch=1, new=1, context=32768)
    assert step.bytes_by_role["kv_cache_read_bytes"] == 2 * 78 * (2048 * 576 + 32769 * 128)
