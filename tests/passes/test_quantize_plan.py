"""Plans of quantize: what is said module by module is what the options say, where they say it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.base.errors import PassError
from llmir.ir.core.program import Program
from llmir.ir.tools.pipeline import parse_pipeline
from llmir.passes.modules import read_plan
from llmir.passes.quantize import Quantize
from tests.logits import ids, logits, same
from tests.strategies import FUSIONS, configs

NAMES = {
    "weights": ("fp8", "int4_g32", "bf16", "keep"),
    "activations": ("fp8", "int8", "keep"),
    "kv": ("fp8", "int8", "keep"),
    "collectives": ("int8", "fp32", "keep"),
}
ROLES = st.fixed_dictionaries({}, optional={role: st.sampled_from(names) for role, names in NAMES.items()})
PLANS = st.dictionaries(
    st.sampled_from(("mlp", "*_proj", "model.layers.*.mlp.down_proj", "layer.k_cache", "lm_head")),
    st.one_of(st.sampled_from(NAMES["weights"]), ROLES.filter(bool)),
)


@given(PLANS)
def test_a_plan_is_read_back_from_its_text(plan: dict[str, Any]) -> None:
    step = Quantize(plan=plan)
    assert read_plan(step.plan) == read_plan(plan)
    assert parse_pipeline(str(step)) == [step]


def modules(program: Program, *opcodes: str) -> list[str]:
    return [n.name for g in program.graphs.values() for n in g.nodes if n.op.opcode in opcodes]


@given(configs(), FUSIONS, st.sampled_from((("fp8", "fp8"), ("int8", "int8"), ("int4_g4", "fp8"))))
@settings(max_examples=40)
def test_to_say_it_of_each_module_is_to_say_it_of_all(
    config: dict[str, Any], pipeline: str, formats: tuple[str, str]
) -> None:
    program = llmir.run(llmir.load(config), pipeline)
    weights, activations = formats
    by_role = Quantize(weights, activations, "int8")
    kept = {"lm_head", "gate", "router"}
    products = set(modules(program, "linear", "grouped_linear")) - kept
    router = {n.name for g in program.graphs.values() for n in g.nodes if n.op.block == "router"}
    plan: dict[str, Any] = {n: {"weights": weights, "activations": activations} for n in products - router}
    plan |= {n: {"kv": "int8"} for n in modules(program, "cache")}
    assert llmir.run(program, Quantize(plan=plan)) == llmir.run(program, by_role)


@given(configs(), FUSIONS)
@settings(max_examples=20)
def test_what_is_kept_is_as_before(config: dict[str, Any], pipeline: str) -> None:
    """`keep` takes a module out of what is said of all; activations of wide weights are wide anyway."""
    program = llmir.run(llmir.load(config), pipeline)
    blocks = ("attention", "mlp", "routed_experts", "shared_experts")
    keep: dict[str, Any] = dict.fromkeys(blocks, "keep")
    here = {n.op.block for g in program.graphs.values() for n in g.nodes}
    plan = {k: v for k, v in keep.items() if k in here} | {"*_cache": {"kv": "keep"}}
    assert llmir.run(program, Quantize("fp8", kv="fp8", plan=plan)) is program


def test_activations_of_some_modules() -> None:
    base = llmir.load("llama3.1-8b")
    plan = {"mlp": {"activations": "fp8"}, "down_proj": {"activations": "keep"}}
    program = llmir.run(base, Quantize("fp8", plan=plan))
    assert modules(program, "quantize") == ["quantize_post_norm"]
    both = llmir.run(base, Quantize("fp8", "fp8", plan={"o_proj": {"activations": "bf16"}}))
    assert "quantize_mix" not in modules(both, "quantize")
    assert len(modules(both, "quantize")) == 3
    # What is not named keeps what an earlier pass gave it.
    again = llmir.run(both, Quantize(plan={"down_proj": {"activations": "bf16"}}))
    assert sorted(modules(again, "quantize")) == ["quantize_input_norm", "quantize_post_norm"]


def test_keys_and_values_in_types_of_their_own() -> None:
    program = llmir.run(
        llmir.load("llama3.1-8b"), Quantize(plan={"k_cache": {"kv": "int8"}, "v_cache": {"kv": "fp8"}})
    )
    assert program.kv_cache_bytes_per_token == 32 * 8 * (128 + 4 + 128)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 50,
    }
    mixed = Quantize(plan={"k_cache": {"kv": "int8"}, "v_cache": {"kv": "fp8"}})
    eager = llmir.run(llmir.load(config), mixed)
    tokens = ids(2, 4, 50)
    expected = logits(eager, tokens, 3, 1)
    assert not same(expected, logits(llmir.load(config), tokens, 3, 1))
    for pipeline in ("fuse-attention,fuse", "unroll"):
        assert same(logits(llmir.run(eager, pipeline), tokens, 3, 1), expected)


def test_layers_apart_after_unroll() -> None:
    flat = llmir.run(llmir.load("qwen3-0.6b"), "unroll")
    plan = {"layer.0.*": "keep", "layer.3.k_cache": {"kv": "int8"}}
    program = llmir.run(flat, Quantize("int4", plan=plan))
    types = {n.name: n.results[0].dtype.scheme for n in program["main"].nodes}
    assert (types["layer.0.down_proj.weight"], types["layer.1.down_proj.weight"]) == ("bf16", "int4_g128")
    assert [name for name, type in types.items() if type == "int8_c" and name.endswith("_cache")] == [
        "layer.3.k_cache"
    ]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"q_proj": {"activations": "fp8"}}, "qkv_proj is one op, but its modules have other activations"),
        (
            {"down_proj": {"activation": "fp8"}},
            "'activation' is none of weights, activations, kv, collectives",
        ),
        (
            {"down_proj": {"activations": "int8"}},
            "int8 need weights of their kind and as narrow, not fp8_e4m3_c",
        ),
        ({"down_proj": {"activations": "fp16"}}, "or in the model's own type, bf16, got fp16"),
        ({"embedding": {"activations": "fp8"}}, "'embedding' has weights, but no activations"),
        ({"k_cach": {"kv": "fp8"}}, "no module 'k_cach'; did you mean k_cache"),
        ({"down_prj": {"activations": "fp8"}}, "no module 'down_prj'; did you mean down_proj"),
        ({"mlp": {}}, "expected module: dtype"),
        ({"mlp": {"weights": 8}}, "expected modules and dtypes as text"),
    ],
)
def test_what_cannot_be_is_an_error(plan: dict[str, Any], says: str) -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    with pytest.raises(PassError) as error:
        llmir.run(program, Quantize("fp8", plan=plan))
    assert says in str(error.value)
    assert "\n" not in str(error.value)
