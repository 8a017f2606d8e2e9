"""A config's own `quantization_config`: the checkpoint's bytes, or an error that names the method."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.base.errors import ConfigError, UnsupportedError
from llmir.frontends.config.reader import QUANTIZATION_INERT, QUANTIZATION_NEUTRAL
from llmir.frontends.models.presets import find
from llmir.ir.ops.sources import Weight
from tests.passes.test_quantize import FORMATS, LLAMA_8B, QWEN3_30B, bytes_of


def preset(name: str) -> dict[str, Any]:
    found = find(name)
    assert found
    return dict(found.config)


LLAMA, QWEN = preset("llama3.1-8b"), preset("qwen3-30b-a3b")


def linears(model: dict[str, Any], form: str) -> int:
    return int(model["layers"] * sum(FORMATS[form](i, o) for i, o in model["products"]))


def load(base: dict[str, Any], **scheme: Any) -> llmir.Program:
    return llmir.load({**base, "quantization_config": scheme})


def group(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}


FP8_BLOCKS = {
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
}
EIGHT = {"num_bits": 8, "type": "float", "strategy": "channel"}
FOUR = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}


@pytest.mark.parametrize(
    ("scheme", "form", "activations"),
    [
        (FP8_BLOCKS, "fp8_b128x128", "fp8"),
        ({**FP8_BLOCKS, "scale_fmt": "ue8m0"}, "fp8_b128x128", "fp8"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8", "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4_g128z", "bf16"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
            "int4_g128zi",
            "bf16",
        ),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True}, "int8_c16zi", "bf16"),
        ({"load_in_8bit": True, "llm_int8_skip_modules": ["lm_head"]}, "int8", "int8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(EIGHT, {**EIGHT, "strategy": "token"}),
                "ignore": ["lm_head"],
            },
            "fp8",
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(
                    {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
                ),
                "ignore": ["lm_head"],
            },
            "int4",
            "bf16",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group({"num_bits": 4, "type": "float", "strategy": "tensor_group"}),
                "ignore": ["lm_head"],
            },
            "nvfp4",
            "bf16",
        ),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8", "fp8"),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "config_groups": group(FOUR, {**FOUR, "dynamic": True}),
                "ignore": ["lm_head"],
            },
            "nvfp4",
            "nvfp4",
        ),
    ],
)
@pytest.mark.parametrize(("base", "model"), [(LLAMA, LLAMA_8B), (QWEN, QWEN3_30B)], ids=["dense", "experts"])
def test_loading_gives_the_bytes_of_the_checkpoint(
    base: dict[str, Any], model: dict[str, Any], scheme: dict[str, Any], form: str, activations: str
) -> None:
    program = load(base, **scheme)
    assert bytes_of(program)[0] == linears(model, form) + 2 * model["kept"]
    assert program.notes == ()
    job = llmir.workload(program, "h100", batch=1, prompt=8, generate=2).to_dict()
    assert job["precision"]["activations"] == activations
    assert llmir.parse_program(llmir.print_program(program)) == program


def test_modelopt_has_a_scale_a_matrix_and_a_cache_of_its_own() -> None:
    """A scheme as ModelOpt exports it: static scales of tensors, and a cache in fp8."""
    of = {"dynamic": False, "num_bits": 8, "type": "float"}
    program = load(
        LLAMA,
        quant_method="modelopt",
        quant_algo="FP8",
        config_groups=group(of, of),
        ignore=["lm_head"],
        kv_cache_scheme=of,
        producer={"name": "modelopt", "version": "0.29.0"},
    )
    elements = sum(i * o for i, o in LLAMA_8B["products"])
    scales = 4 * len(LLAMA_8B["products"])
    assert bytes_of(program)[0] == LLAMA_8B["layers"] * (elements + scales) + 2 * LLAMA_8B["kept"]
    assert program.kv_cache_bytes_per_token == 2 * 32 * 8 * 128


def test_mxfp4_is_for_routed_experts() -> None:
    program = load(QWEN, quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])
    attention, experts = QWEN3_30B["products"][:4], QWEN3_30B["products"][4:]
    matrices = sum(2 * i * o for i, o in attention) + sum(FORMATS["mxfp4"](i, o) for i, o in experts)
    assert bytes_of(program)[0] == 48 * matrices + 2 * QWEN3_30B["kept"]


def test_modules_to_not_convert_are_kept() -> None:
    listed = ["lm_head", *(f"model.layers.{i}.mlp.gate" for i in range(48))]
    listed += [f"model.layers.{i}.self_attn.o_proj" for i in range(48)]
    program = load(QWEN, **FP8_BLOCKS, modules_to_not_convert=listed)
    assert program["layer"]["o_proj.weight"].results[0].dtype.name == "bf16"
    assert program["layer"]["q_proj.weight"].results[0].dtype.scheme == "fp8_e4m3_b128x128"
    regex = load(
        LLAMA,
        quant_method="compressed-tensors",
        config_groups=group(EIGHT),
        ignore=["re:.*down_proj$"],
    )
    kinds = {n.name: n.results[0].dtype.scheme for g in regex.graphs.values() for n in g.nodes}
    assert kinds["down_proj.weight"] == kinds["embed.weight"] == "bf16"
    assert kinds["up_proj.weight"] == kinds["lm_head.weight"] == "fp8_e4m3_c"


def matrices(program: llmir.Program) -> dict[str, list[str]]:
    """The types of each module's matrix, by layer."""
    found: dict[str, list[str]] = {}
    for at in program.instances():
        if (
            isinstance(at.node.op, Weight)
            and at.node.op.param.endswith(".weight")
            and "{layer}" in at.node.op.param
        ):
            kinds = found.setdefault(at.node.op.param, [""] * 60)
            for layer in at.layers:
                kinds[layer] = at.node.results[0].dtype.scheme
    return found


DENSE_AND_EXPERTS = {**QWEN, "num_hidden_layers": 12, "mlp_only_layers": [0, 5], "decoder_sparse_step": 2}


@pytest.mark.parametrize(
    ("base", "entries", "kept"),
    [
        (LLAMA, ["model.layers.0.mlp.down_proj", "lm_head"], {"mlp.down_proj": {0}}),
        (LLAMA, ["model.layers.0", "model.layers.31.mlp"], {"self_attn.q_proj": {0}, "mlp.up_proj": {0, 31}}),
        (LLAMA, ["re:.*layers\\.[3-5]\\.self_attn.*", "v_proj"], {"self_attn.k_proj": {3, 4, 5}}),
        (LLAMA, ["model.layers.1*.self_attn.*"], {"self_attn.o_proj": {1, *range(10, 20)}}),
        # A body that runs again and again, in one of its runs only.
        (
            DENSE_AND_EXPERTS,
            ["model.layers.3"],
            {"self_attn.q_proj": {3}, "mlp.experts.{expert}.up_proj": {3}},
        ),
        (
            DENSE_AND_EXPERTS,
            ["model.layers.5.mlp", "layers.6"],
            {"mlp.up_proj": {5, 6}, "self_attn.q_proj": {6}},
        ),
        (DENSE_AND_EXPERTS, ["re:.*layers\\.7\\.mlp\\.experts.*"], {"mlp.experts.{expert}.up_proj": {7}}),
    ],
)
def test_a_module_is_left_as_it_is_in_the_layers_that_are_listed(
    base: dict[str, Any], entries: list[str], kept: dict[str, set[int]]
) -> None:
    program = load(base, **FP8_BLOCKS, modules_to_not_convert=entries)
    assert program.notes == () and llmir.parse_program(llmir.print_program(program)) == program
    assert program.parameters == llmir.load(base).parameters
    found, all_quantized = matrices(program), matrices(load(base, **FP8_BLOCKS))
    for module, layers in kept.items():
        param = f"model.layers.{{layer}}.{module}.weight"
        expected = ["bf16" if i in layers else kind for i, kind in enumerate(all_quantized[param])]
        assert found[param] == expected


def test_layers_that_leave_the_same_share_a_body() -> None:
    for entries in ([], ["lm_head"], [f"model.layers.{i}.self_attn.q_proj" for i in range(32)]):
        assert list(load(LLAMA, **FP8_BLOCKS, modules_to_not_convert=entries).graphs) == ["main", "layer"]
    ends = load(LLAMA, **FP8_BLOCKS, modules_to_not_convert=["model.layers.0", "model.layers.31"])
    assert list(ends.graphs) == ["main", "layer", "layer_2"]
    saved = bytes_of(llmir.load(LLAMA))[0] - bytes_of(load(LLAMA, **FP8_BLOCKS))[0]
    assert bytes_of(llmir.load(LLAMA))[0] - bytes_of(ends)[0] == saved * 30 // 32


def test_biases_do_not_stand_in_the_way_of_modules() -> None:
    program = load(
        preset("qwen2.5-7b"), **FP8_BLOCKS, modules_to_not_convert=["q_proj", "model.layers.0.mlp"]
    )
    kinds = {node.name: node.results[0].dtype.scheme for node in program["layer_2"].nodes}
    assert (kinds["q_proj.weight"], kinds["k_proj.weight"]) == ("bf16", "fp8_e4m3_b128x128")


def test_some_experts_of_a_layer_cannot_be_left() -> None:
    says = r"model\.layers\.0\.mlp\.experts: some experts are not quantized; llmir models all or none$"
    for entry in ("mlp.experts.7", "re:.*experts\\.1[0-9]\\..*", "*experts.3.up_proj"):
        with pytest.raises(UnsupportedError, match=says):
            load(QWEN, **FP8_BLOCKS, modules_to_not_convert=[entry])
    every = [f"model.layers.{i}.mlp.experts.{e}" for i in range(2) for e in range(128)]
    program = load({**QWEN, "num_hidden_layers": 2}, **FP8_BLOCKS, modules_to_not_convert=every)
    assert program["layer"]["up_proj.weight"].results[0].dtype.scheme == "bf16"


def test_the_cache_scheme_is_read() -> None:
    scheme = {
        "config_groups": group({**EIGHT, "strategy": "tensor"}),
        "kv_cache_scheme": EIGHT,
        "ignore": ["lm_head"],
    }
    program = load(LLAMA, quant_method="compressed-tensors", **scheme)
    assert 2 * program.kv_cache_bytes_per_token == llmir.load(LLAMA).kv_cache_bytes_per_token
    assert bytes_of(program)[0] == 32 * sum(i * o + 4 for i, o in LLAMA_8B["products"]) + 2 * LLAMA_8B["kept"]


def test_more_can_be_asked_of_a_quantized_model() -> None:
    program = load(LLAMA, **FP8_BLOCKS)
    assert llmir.run(program, "quantize{weights=bf16, kv=bf16}").graphs == llmir.load(LLAMA).graphs
    both = llmir.run(program, "quantize{kv=fp8},fuse-attention,fuse")
    assert bytes_of(both)[0] == bytes_of(program)[0]


def test_null_is_not_quantized() -> None:
    assert llmir.load({**LLAMA, "quantization_config": None}).graphs == llmir.load(LLAMA).graphs


@pytest.mark.parametrize(
    ("scheme", "says", "kind"),
    [
        ({"quant_method": "hqq"}, "'hqq' is not supported; supported are fp8, awq, gptq", UnsupportedError),
        (
            {"quant_method": "awq", "bits": 3},
            r"\$.quantization_config.bits: 3 is not supported",
            UnsupportedError,
        ),
        ({"quant_method": "compressed-tensors"}, "config_groups: expected one group", UnsupportedError),
        (
            {"quant_method": "compressed-tensors", "config_groups": group({"num_bits": 3, "type": "int"})},
            "3-bit int is not supported",
            UnsupportedError,
        ),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "expected two integers from 1", ConfigError),
        ({"quant_method": "fp8", "fmt": "e5m3"}, "is not supported", UnsupportedError),
        ({"quant_method": "fp8", "scale_fmt": "e4m3"}, "is not supported", UnsupportedError),
        ({"quant_method": 7}, "expected a string", ConfigError),
        ({}, "quant_method: missing", ConfigError),
        *(
            ({"quant_method": "compressed-tensors", "config_groups": group(weights), **more}, says, kind)
            for weights, more, says, kind in [
                (EIGHT, {"kv_cache_scheme": "fp8"}, r"\.kv_cache_scheme: expected an object", ConfigError),
                ({**EIGHT, "type": [1]}, {}, r"\.group_0\.weights\.type: expected a string", ConfigError),
                ({**EIGHT, "strategy": "token"}, {}, r'\.strategy: "token" is not supp', UnsupportedError),
                ({**EIGHT, "symmetric": False}, {}, r"\.symmetric: false is not mod", UnsupportedError),
                ({**EIGHT, "num_bits": True}, {}, r"\.num_bits: expected an integer from 1 to", ConfigError),
                ({**EIGHT, "strategy": "group"}, {}, r"\.weights\.group_size: missing", ConfigError),
                (EIGHT, {"config_groups": group({})}, r"\.weights\.num_bits: missing", ConfigError),
                (EIGHT, {"config_groups": []}, r"config_groups: expected an object", ConfigError),
                (EIGHT, {"config_groups": {"a": None}}, r"\.a: expected an object with w", ConfigError),
                (EIGHT, {"kv_cache_scheme": {**EIGHT, "symmetric": False}}, "zero points", UnsupportedError),
            ]
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": "all"}, "group_size", ConfigError),
        ({"quant_method": "modelopt"}, "quant_algo: missing", ConfigError),
        ({"quant_method": "modelopt", "quant_algo": "MIXED"}, "FP8 and NVFP4 are", UnsupportedError),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": group(EIGHT)},
            "NVFP4 contradicts weights in fp8_c",
            ConfigError,
        ),
    ],
)
def test_what_is_not_supported_names_the_method(
    scheme: dict[str, Any], says: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=says) as error:
        load(LLAMA, **scheme)
    assert "\n" not in str(error.value)


def test_lenient_takes_an_unknown_method_as_none() -> None:
    program = llmir.load({**LLAMA, "quantization_config": {"quant_method": "hqq"}}, lenient=True)
    assert "'hqq' is not supported" in program.notes[0]
    assert program.graphs == llmir.load(LLAMA).graphs


@pytest.mark.parametrize("key", QUANTIZATION_INERT)
def test_fields_that_cannot_act_on_a_scheme_are_read_without_a_note(key: str) -> None:
    scheme = {**FP8_BLOCKS, **({} if key == "quant_method" else {key: "anything"})}
    assert load(LLAMA, **scheme) == load(LLAMA, **FP8_BLOCKS)


def test_experts_in_another_type_than_blocks_of_fp8_are_named() -> None:
    assert load(LLAMA, **FP8_BLOCKS, expert_dtype="fp8") == load(LLAMA, **FP8_BLOCKS, expert_dtype=None)
    with pytest.raises(
        UnsupportedError, match=r'expert_dtype: "some" is not supported \(experts\); fp8 or fp4'
    ):
        load(LLAMA, **FP8_BLOCKS, expert_dtype="some")


@pytest.mark.parametrize("key", ["made_by", *QUANTIZATION_NEUTRAL])
def test_what_may_act_on_a_scheme_is_refused_by_name(key: str) -> None:
    for value in QUANTIZATION_NEUTRAL.get(key, ((), ""))[0]:
        assert load(LLAMA, **FP8_BLOCKS, **{key: value}).notes == ()
    with pytest.raises(UnsupportedError, match=rf'^\$\.quantization_config\.{key}: "some" is not modelled'):
        load(LLAMA, **FP8_BLOCKS, **{key: "some"})
    lenient = {**LLAMA, "quantization_config": {**FP8_BLOCKS, key: "some"}}
    assert key in llmir.load(lenient, lenient=True).notes[0]


@pytest.mark.parametrize("inside", ["weights", "input_activations", ""])
def test_what_may_act_on_a_group_is_refused_by_name(inside: str) -> None:
    groups = group({**EIGHT}, {**EIGHT, "strategy": "token"})
    of = groups["group_0"]
    (of[inside] if inside else of)["output_activations"] = EIGHT
    with pytest.raises(UnsupportedError, match=r"output_activations: an object is not modelled"):
        load(LLAMA, quant_method="compressed-tensors", config_groups=groups)


@pytest.mark.parametrize("form", [None, "dense", "sparse-24-bitmask"])
def test_sparse_weights_are_refused_and_dense_ones_that_say_so_are_not(form: str | None) -> None:
    fields = {
        "config_groups": group(EIGHT),
        "sparsity_config": {"format": form, "x": 1},
    }
    if form == "sparse-24-bitmask":
        with pytest.raises(UnsupportedError, match=r"sparsity_config\.format"):
            load(LLAMA, quant_method="compressed-tensors", **fields)
    else:
        assert load(LLAMA, quant_method="compressed-tensors", **fields).notes == ()


def test_both_names_of_the_list_of_modules_are_read() -> None:
    theirs, ours = (
        load(LLAMA, quant_method="fp8", **{name: ["lm_head", "re:.*down_proj$"]})
        for name in ("modules_to_not_convert", "ignored_layers")
    )
    assert theirs.graphs == ours.graphs != load(LLAMA, quant_method="fp8").graphs


@pytest.mark.parametrize(
    "scheme",
    [
        {"quant_method": "mxfp4"},  # of routed experts, and this model has none
        {"quant_method": "fp8", "modules_to_not_convert": ["model"]},
        {"load_in_8bit": True, "llm_int8_skip_modules": ["self_attn", "mlp", "lm_head"]},
    ],
)
def test_a_scheme_that_quantizes_nothing_is_refused(scheme: dict[str, Any]) -> None:
    with pytest.raises(
        UnsupportedError, match=r"^\$\.quantization_config\.quant_method: .* quantizes nothing of"
    ):
        load(LLAMA, **scheme)
    [note] = llmir.load({**LLAMA, "quantization_config": scheme}, lenient=True).notes
    assert note.endswith("treated as not quantized")
