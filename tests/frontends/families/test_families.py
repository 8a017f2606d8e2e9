"""What a family reads of a config, what it assumes, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.base.errors import ConfigError, UnsupportedError
from llmir.frontends.config.reader import INERT, NEUTRAL
from llmir.ir.core.masks import mask
from llmir.ir.ops.rope import Rotary
from llmir.ir.sizes.polynomial import C
from tests.commands import TINY

QWEN2 = {**TINY, "architectures": ["Qwen2ForCausalLM"]}
QWEN = {**TINY, "head_dim": 16, "architectures": ["Qwen3ForCausalLM"]}
MOE = {
    **QWEN,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
QWEN2_MOE = {
    **MOE,
    "architectures": ["Qwen2MoeForCausalLM"],
    "shared_expert_intermediate_size": 48,
    "use_qk_norm": False,
}
MISTRAL = {**TINY, "architectures": ["MistralForCausalLM"], "sliding_window": None}
MIXTRAL = {**TINY, "architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2}
PHI = {**TINY, "architectures": ["Phi3ForCausalLM"]}
CONFIGS: tuple[dict[str, Any], ...] = (TINY, QWEN2, QWEN, MOE, QWEN2_MOE, PHI, MISTRAL, MIXTRAL)
EACH = {config["architectures"][0]: config for config in CONFIGS}
# The defaults of transformers' LlamaConfig, Qwen2Config and so on.
POSITIONS = {
    "LlamaForCausalLM": 2048,
    "Qwen2ForCausalLM": 32768,
    "Qwen3ForCausalLM": 32768,
    "Qwen3MoeForCausalLM": 32768,
    "Qwen2MoeForCausalLM": 32768,
    "Phi3ForCausalLM": 4096,
    "MistralForCausalLM": 131072,
    "MixtralForCausalLM": 131072,
}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in keys}


@pytest.mark.parametrize("architecture", POSITIONS)
def test_positions_that_no_config_states_are_no_fact(architecture: str) -> None:
    program = llmir.load(without(EACH[architecture], "max_position_embeddings"))
    assert "positions" not in program.facts
    job = llmir.workload(program, "h100-sxm", prompt=10**6, generate=2)
    assert not [note for note in job.notes if "positions" in note]


@pytest.mark.parametrize("kind", ["dynamic", "yarn"])
@pytest.mark.parametrize("architecture", POSITIONS)
def test_a_stretch_starts_from_the_positions_of_the_family(architecture: str, kind: str) -> None:
    scaled = {"rope_scaling": {"rope_type": kind, "factor": 4.0}}
    program = llmir.load({**without(EACH[architecture], "max_position_embeddings"), **scaled})
    ropes = [at.node.op for at in program.instances() if isinstance(at.node.op, Rotary)]
    assert ropes and {rope.factors[1] for rope in ropes} == {POSITIONS[architecture]}


@pytest.mark.parametrize("config", [TINY, MOE], ids=["dense", "moe"])
def test_layers_beyond_reason_are_one_line(config: dict[str, Any]) -> None:
    for layers in (10_001, 2**47):
        with pytest.raises(ConfigError, match=f"^.\\.num_hidden_layers: .* from 1 to 10,000, got {layers}$"):
            llmir.load({**config, "num_hidden_layers": layers})


# What a family's other fields decide a neutral value of.
ACTING: list[tuple[dict[str, Any], str, object]] = [
    (TINY, "hidden_act", "xielu"),
    (TINY, "use_qk_norm", True),
    (QWEN, "use_qk_norm", False),
    (TINY, "qkv_bias", True),
    (QWEN2, "qkv_bias", False),
    *((QWEN2, "attention_bias", bias) for bias in (False, True)),
    (QWEN, "mlp_bias", True),
    (TINY, "attention_multiplier", 1.0),  # heads of 16 have 0.25
    (TINY, "query_pre_attn_scalar", 256),
    *((TINY, key, 8) for key in ("num_experts", "num_local_experts", "n_routed_experts")),
    (QWEN, "num_experts", 8),
    (QWEN, "num_experts_per_tok", 2),
    *((config, "use_sliding_window", True) for config in (TINY, MISTRAL)),
    *((config, "sliding_window", 8) for config in (TINY,)),
    *((config, "num_experts", 8) for config in (MISTRAL, MIXTRAL)),
    (MIXTRAL, "shared_expert_intermediate_size", 8),
    (MIXTRAL, "norm_topk_prob", True),
    *((config, "attention_bias", True) for config in (QWEN2_MOE, PHI, MISTRAL, MIXTRAL)),
    (TINY, "partial_rotary_factor", 0.5),
    (TINY, "model_type", "mistral"),
    # What one of `NEUTRAL` would be taken for.
    (TINY, "add_cross_attention", 0),
    (TINY, "residual_multiplier", True),
    (TINY, "is_causal", None),  # transformers takes it for false
    (TINY, "n_group", False),
    (MOE, "norm_topk_probability", True),
]


@pytest.mark.parametrize(("config", "key", "value"), ACTING, ids=[f"{a[1]}-{a[2]}" for a in ACTING])
def test_what_changes_the_computation_is_refused_by_name(
    config: dict[str, Any], key: str, value: object
) -> None:
    with pytest.raises(UnsupportedError) as error:
        llmir.load({**config, key: value})
    assert str(error.value).startswith(f"$.{key}: ") and str(error.value).isprintable()
    assert [n for n in llmir.load({**config, key: value}, lenient=True).notes if key in n]


# By one family or another.
READ = {"attention_bias", "mlp_bias", "shared_expert_intermediate_size"}
READ |= {"sliding_window", "use_sliding_window"}


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("config", EACH.values(), ids=EACH)
@pytest.mark.parametrize("key", [key for key in NEUTRAL if key not in READ])
def test_a_field_that_may_act_is_refused_but_for_the_values_with_which_it_does_not(
    config: dict[str, Any], key: str
) -> None:
    for value in NEUTRAL[key][0]:
        assert llmir.load({**config, key: value}) == llmir.load(config)
    for value in ("some", 7, 0.25, [], {"a": 1}):
        with pytest.raises(UnsupportedError) as error:
            llmir.load({**config, key: value})
        assert str(error.value).startswith(f"$.{key}: ") and NEUTRAL[key][1] in str(error.value)


@pytest.mark.parametrize("config", EACH.values(), ids=EACH)
def test_what_cannot_act_is_read_without_a_note(config: dict[str, Any]) -> None:
    known = {"architectures": config["architectures"], "model_type": None, "auto_map": {"AutoConfig": "x"}}
    known |= {"max_window_layers": 28}  # read by some of them
    for value in ("anything", 7, None, [1], {"a": 1}):
        assert llmir.load({**config, **dict.fromkeys(INERT, value), **known}) == llmir.load(config)


def test_every_field_has_one_answer_and_every_answer_a_reason() -> None:
    assert not INERT.keys() & NEUTRAL.keys()
    assert all(len(reason) > 10 for reason in INERT.values())
    assert all(reason and values for values, reason in NEUTRAL.values())


def test_code_of_its_own_is_noted_since_it_is_not_run() -> None:
    [note] = llmir.load({**TINY, "auto_map": {"AutoModelForCausalLM": "modeling_x.LlamaForCausalLM"}}).notes
    assert "auto_map" in note and "not run" in note


FIELDS_WITHOUT_EFFECT: list[tuple[dict[str, Any], dict[str, object]]] = [
    (TINY, {"attention_multiplier": 0.25, "query_pre_attn_scalar": 16, "use_qk_norm": False}),
    (TINY, dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"), 0)),
    (TINY, {"layer_types": ["full_attention"] * 2, "partial_rotary_factor": 1.0, "qkv_bias": False}),
    (QWEN2, {"qkv_bias": True, "sliding_window": 131072, "max_window_layers": 28}),
    *((config, {"sliding_window": 4096, "use_sliding_window": False}) for config in (QWEN2, QWEN, MOE)),
    # A window in no layer: none of these begins one, none has a width, and kinds of layers go first.
    *((config, {"use_sliding_window": True, "max_window_layers": 2}) for config in (QWEN2, QWEN)),
    *((config, {"use_sliding_window": True, "sliding_window": None}) for config in (QWEN2, QWEN, MOE)),
    (QWEN, {"use_sliding_window": True, "max_window_layers": 0, "layer_types": ["full_attention"] * 2}),
    # As Qwen3-Coder-30B-A3B-Instruct has them.
    (MOE, {"use_qk_norm": True, "shared_expert_intermediate_size": 0, "qkv_bias": False}),
    (MOE, {"num_local_experts": 8}),
]


@pytest.mark.parametrize(("config", "fields"), FIELDS_WITHOUT_EFFECT)
def test_what_changes_nothing_is_read_without_a_note(
    config: dict[str, Any], fields: dict[str, object]
) -> None:
    assert llmir.load({**config, **fields}) == llmir.load(config)


WINDOW, FULL = "window(8)", "causal"
SLIDES = {"use_sliding_window": True, "sliding_window": 8}


@pytest.mark.parametrize(
    ("config", "fields", "masks"),
    [
        *((config, {**SLIDES, "max_window_layers": 1}, (FULL, WINDOW)) for config in (QWEN2, QWEN)),
        (QWEN2, {**SLIDES, "max_window_layers": 0}, (WINDOW, WINDOW)),
        (QWEN2, {**SLIDES}, (FULL, FULL)),
        (QWEN2, {"use_sliding_window": True, "max_window_layers": 0}, ("window(4096)",) * 2),
        (QWEN, {**SLIDES, "layer_types": ["sliding_attention", "full_attention"]}, (WINDOW, FULL)),
        (MOE, {**SLIDES, "max_window_layers": 2}, (WINDOW, WINDOW)),
        (QWEN2_MOE, {**SLIDES}, (WINDOW, FULL)),
        (QWEN2_MOE, {**SLIDES, "max_window_layers": 0}, (FULL, FULL)),
        *((config, {"sliding_window": 8}, (WINDOW, WINDOW)) for config in (PHI, MISTRAL, MIXTRAL)),
        *((config, {"sliding_window": None}, (FULL, FULL)) for config in (PHI, MISTRAL, MIXTRAL)),
    ],
)
def test_windows_are_in_the_layers_that_the_class_has_them_in(
    config: dict[str, Any], fields: dict[str, object], masks: tuple[str, ...]
) -> None:
    program = llmir.run(llmir.load({**config, **fields}), "fuse-attention,unroll")
    ops: list[Any] = [at.node.op for at in program.instances() if at.node.op.opcode == "flash_attention"]
    assert tuple(op.mask for op in ops) == masks
    kept = [at.node.results[0].shape[1] for at in program.instances() if at.node.op.role == "cache"][::2]
    assert [str(size) for size in kept] == [str(mask(m).kept(C)) for m in masks]


def test_what_windows_absent_fields_mean() -> None:
    for config, due in ((MISTRAL, "window(4096)"), (MIXTRAL, "causal")):
        program = llmir.run(llmir.load(without(config, "sliding_window")), "fuse-attention")
        ops: list[Any] = [at.node.op for at in program.instances() if at.node.op.opcode == "flash_attention"]
        assert [op.mask for op in ops] == [due]


ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (TINY, {"dtype": "float16"}, "$.torch_dtype: bf16 contradicts dtype fp16"),
    (MOE, {"num_local_experts": 4}, "$.num_local_experts: 4 contradicts num_experts 8"),
    (MOE, {"num_key_value_heads": None}, "$.num_key_value_heads: expected an integer from 1 to 2**48"),
    (QWEN, {"layer_types": ["full_attention"]}, "$.layer_types: 1 kinds for 2 layers"),
    (QWEN, {"sliding_window": "4096"}, '$.sliding_window: expected an integer from 0 to 2**48, got "4096"'),
    (MOE, {"max_window_layers": None}, "$.max_window_layers: expected an integer from 0 to 2**48, got null"),
    (QWEN, {"use_sliding_window": None}, "$.use_sliding_window: expected true or false, got null"),
    (QWEN2_MOE, {"qkv_bias": None}, "$.qkv_bias: expected true or false, got null"),
    (
        PHI,
        {"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 32}},
        "$.rope_scaling.original_max_position_embeddings: 32.0 contradicts 4096",
    ),
    (MISTRAL, {"sliding_window": 0}, "$.sliding_window: expected an integer from 1 to 2**48, or null for"),
    (MISTRAL, {"sliding_window": 4.5}, "$.sliding_window: expected an integer from 0 to 2**48, got 4.5"),
    (MISTRAL, {"num_key_value_heads": 3}, "$.num_key_value_heads: 3 does not divide 4 attention heads"),
    (MIXTRAL, {"num_experts_per_tok": 9}, "$.num_experts_per_tok: 9 is more than the 8 experts"),
    (MIXTRAL, {"num_local_experts": None}, "$.num_local_experts: expected an integer from 1 to 2**48"),
    (QWEN, {"layer_types": []}, "$.layer_types: 0 kinds for 2 layers"),
    (
        TINY,
        {"rope_scaling": ROPE, "rope_parameters": {**ROPE, "factor": 8}},
        "$.rope_scaling: contradicts rope_p",
    ),
    (
        TINY,
        {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
        "$.rope_parameters.rope_theta: 10000.0 contradicts 500000.0 beside it",
    ),
    (
        TINY,
        {"original_max_position_embeddings": 16, "rope_scaling": ROPE},
        "$.rope_scaling.original_max_position_embeddings: 32.0 contradicts 16.0 beside it",
    ),
    (
        TINY,
        {"rope_scaling": {"rope_type": "default", "type": "mrope"}},
        '$.rope_scaling.type: "mrope" contradicts rope_type "default"',
    ),
    (
        TINY,
        {"rope_scaling": {**ROPE, "rope_type": "llama3", "low_freq_factor": 4.5, "high_freq_factor": 4.0}},
        "$.rope_scaling.high_freq_factor: expected at least low_freq_factor, 4.5, got 4.0",
    ),
    (TINY, {"rope_scaling": ROPE, "rope_theta": 1.0}, "$.rope_theta: yarn needs more than 1, got 1.0"),
    (
        {**TINY, "head_dim": 2},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "$.head_dim: dynamic rotary scaling needs heads of more than 2",
    ),
    (
        TINY,
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}},
        "$.rope_scaling.long_factor: expected a list of 8 numbers, got a list of 7",
    ),
]


@pytest.mark.parametrize(("config", "fields", "says"), CONTRADICTIONS, ids=[c[2] for c in CONTRADICTIONS])
def test_a_config_that_contradicts_itself_is_an_error(
    config: dict[str, Any], fields: dict[str, Any], says: str
) -> None:
    for lenient in (False, True):
        with pytest.raises(ConfigError) as error:
            llmir.load({**config, **fields}, lenient=lenient)
        assert str(error.value).startswith(says) and not isinstance(error.value, UnsupportedError)


def _of_rope(kind: str, **fields: object) -> tuple[dict[str, Any], str]:
    needed = {
        "default": {},
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 4.0},
        "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "yarn": {"factor": 4.0},
        "longrope": {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    }
    return {"rope_type": kind, **needed.get(kind, {}), **fields}, next(reversed(fields), "rope_type")


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("rope", "key"),
    [
        _of_rope("axial"),
        _of_rope("default", factor=2.0),
        _of_rope("default", mrope_section=[2, 3, 3]),
        _of_rope("linear", mscale=1.0),
        _of_rope("linear", attention_factor=1.1),
        _of_rope("dynamic", original_max_position_embeddings=32),  # transformers does not read it
        _of_rope("dynamic", alpha=1000.0),
        _of_rope("llama3", mscale=1.0),
        _of_rope("yarn", llama_4_scaling_beta=0.1),
        _of_rope("yarn", finetuned=False),
        _of_rope("yarn", partial_rotary_factor=0.5),
        _of_rope("longrope", mscale=1.0),
        *(_of_rope(kind, partial_rotary_factor=0.5) for kind in ("default", "linear", "llama3")),
        *(_of_rope(kind, full_attention={"rope_type": "default"}) for kind in ("default", "yarn")),
    ],
)
def test_what_a_rotary_scaling_does_not_model_is_refused_by_name(
    spelling: str, rope: dict[str, Any], key: str
) -> None:
    config = {**TINY, spelling: rope}
    with pytest.raises(UnsupportedError) as error:
        llmir.load(config)
    assert str(error.value).startswith(f"$.{spelling}.{key}: ") and str(error.value).isprintable()
    assert [n for n in llmir.load(config, lenient=True).notes if f"{spelling}.{key}" in n]


@pytest.mark.parametrize(
    "field",
    [
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
    ],
)
@pytest.mark.parametrize("value", ["1", True, -1.0, float("nan"), float("inf"), [1.0], {"a": 1}, 10**400])
def test_the_numbers_of_a_scaling_are_numbers(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^\$\.rope_scaling\.{field}: expected a number above 0"):
        llmir.load({**TINY, "rope_scaling": {**ROPE, field: value}})


def test_both_spellings_of_the_positions_are_one_program() -> None:
    theirs = {"type": "yarn", "factor": 4, "mscale": 0.707, "mscale_all_dim": 1.0, "truncate": False}
    ours = {"rope_type": "yarn", **without(theirs, "type"), "rope_theta": 5e5}
    old = llmir.load({**TINY, "rope_theta": 500000, "rope_scaling": {**theirs, "finetuned": True}})
    assert old == llmir.load({**TINY, "rope_parameters": ours})
    assert old == llmir.load({**TINY, "rope_parameters": ours, "rope_scaling": ours, "rope_theta": 5e5})
    assert old != llmir.load({**TINY, "rope_parameters": without(ours, "mscale")})
    beside = {**TINY, "rope_parameters": ours, "original_max_position_embeddings": 64}
    assert old == llmir.load(beside)  # where it is absent, it is max_position_embeddings, 64


@pytest.mark.parametrize(
    ("config", "key", "default"),
    [
        (QWEN2, "num_key_value_heads", 32),
        (QWEN, "num_key_value_heads", 32),
        (QWEN, "head_dim", 128),
        (MOE, "num_key_value_heads", 4),
        (MOE, "num_experts", 128),
        (MOE, "num_experts_per_tok", 8),
        (MOE, "moe_intermediate_size", 768),
        *((config, "num_key_value_heads", 8) for config in (MISTRAL, MIXTRAL)),
        (MIXTRAL, "num_local_experts", 8),
        (QWEN2_MOE, "num_key_value_heads", 16),
        (QWEN2_MOE, "num_experts", 60),
        (QWEN2_MOE, "num_experts_per_tok", 4),
        (QWEN2_MOE, "moe_intermediate_size", 1408),
        (QWEN2_MOE, "shared_expert_intermediate_size", 5632),
        (MIXTRAL, "num_experts_per_tok", 2),
    ],
)
def test_a_size_that_the_family_fills_in_is_noted(config: dict[str, Any], key: str, default: int) -> None:
    config = {**config, "num_attention_heads": 32}
    program = llmir.load(without({**config, "hidden_size": 512}, key))
    assert program.notes == (f"config names no {key}; {default} assumed",)
    assert llmir.load({**config, "hidden_size": 512, key: default}).notes == ()


def test_the_config_of_a_picture_model_is_unsupported_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"^\$\._class_name: FluxTransformer2DModel is not supported"):
        llmir.load({"_class_name": "FluxTransformer2DModel", "num_layers": 19})
    assert llmir.load({**TINY, "_class_name": "x"}).facts["architecture"] == "LlamaForCausalLM"


def test_a_kind_of_layer_that_is_not_modelled_is_named_with_its_place() -> None:
    config = {**TINY, "layer_types": ["full_attention", "sliding_attention"]}
    says = r'^\$\.layer_types\[1\]: "sliding_attention" is not modelled; "full_attention" is$'
    with pytest.raises(UnsupportedError, match=says):
        llmir.load(config)
    assert "sliding_attention" in llmir.load(config, lenient=True).notes[0]
