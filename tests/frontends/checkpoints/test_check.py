"""Our weights against a checkpoint's: names, shapes, types and bytes as Hugging Face stores them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.base.errors import ConfigError
from llmir.cli.main import cli
from llmir.frontends.checkpoints import tensors, weights

Shapes = dict[str, tuple[int, ...]]
BITS = {"BF16": 16, "F16": 16, "F32": 32, "I8": 8}

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "architectures": ["LlamaForCausalLM"]},
    "llama-tied": {**SIZES, "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    "mistral": {**SIZES, "architectures": ["MistralForCausalLM"], "head_dim": 10},
    "mixtral": {
        **SIZES,
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "phi3": {**SIZES, "architectures": ["Phi3ForCausalLM"]},
    "qwen2": {**SIZES, "architectures": ["Qwen2ForCausalLM"]},
    "qwen2-moe": {
        **SIZES,
        **MOE,
        "architectures": ["Qwen2MoeForCausalLM"],
        "shared_expert_intermediate_size": 20,
    },
    "qwen3": {**SIZES, "architectures": ["Qwen3ForCausalLM"], "head_dim": 10},
    "qwen3-moe": {
        **SIZES,
        **MOE,
        "architectures": ["Qwen3MoeForCausalLM"],
        "mlp_only_layers": [1],
        "head_dim": 6,
    },
}


def stored(kind: str) -> Shapes:
    """The tensors that transformers saves for that config; linears are [out, in]."""
    config = CONFIGS[kind]
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    head = config.get("head_dim", hidden // 6)
    found: Shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        found[f"{layer}input_layernorm.weight"] = found[f"{layer}post_attention_layernorm.weight"] = (hidden,)
        merged = (("qkv", 10 * head),)
        for name, out in merged if kind == "phi3" else (("q", 6 * head), ("k", 2 * head), ("v", 2 * head)):
            found[f"{layer}self_attn.{name}_proj.weight"] = (out, hidden)
            if kind.startswith("qwen2"):
                found[f"{layer}self_attn.{name}_proj.bias"] = (out,)
        found[f"{layer}self_attn.o_proj.weight"] = (hidden, 6 * head)
        if kind.startswith("qwen3"):
            found[f"{layer}self_attn.q_norm.weight"] = found[f"{layer}self_attn.k_norm.weight"] = (head,)
        found |= follows(kind, layer, i)
    return found


def follows(kind: str, layer: str, i: int) -> Shapes:
    """What comes after attention."""
    hidden, found = SIZES["hidden_size"], Shapes()
    if kind == "phi3":
        return {f"{layer}mlp.gate_up_proj.weight": (80, hidden), f"{layer}mlp.down_proj.weight": (hidden, 40)}
    if kind == "mixtral":
        block = f"{layer}block_sparse_moe."
        shapes = {"w1": (40, hidden), "w2": (hidden, 40), "w3": (40, hidden)}
        names = {f"{block}experts.{e}.{name}.weight": s for e in range(4) for name, s in shapes.items()}
        return {f"{block}gate.weight": (4, hidden), **names}
    if kind == "qwen2-moe":
        found |= mlp(f"{layer}mlp.shared_expert.", hidden, 20)
        found[f"{layer}mlp.shared_expert_gate.weight"] = (1, hidden)
    if kind == "qwen2-moe" or (kind == "qwen3-moe" and i != 1):
        found[f"{layer}mlp.gate.weight"] = (4, hidden)
        for expert in range(4):
            found |= mlp(f"{layer}mlp.experts.{expert}.", hidden, 12)
        return found
    return mlp(f"{layer}mlp.", hidden, 40)


def mlp(prefix: str, hidden: int, inner: int) -> Shapes:
    up = {f"{prefix}{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    return {**up, f"{prefix}down_proj.weight": (hidden, inner)}


def header(shapes: Shapes, dtypes: dict[str, str] | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shapes.items():
        dtype = (dtypes or {}).get(name, "BF16")
        end = start + math.prod(shape) * BITS[dtype] // 8
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    return fields


def safetensors(path: Path, fields: dict[str, Any]) -> str:
    text = json.dumps(fields).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)  # the tensors themselves are not read
    return str(path)


def index(path: Path, shapes: Shapes, **metadata: Any) -> str:
    path.write_text(json.dumps({"metadata": metadata, "weight_map": dict.fromkeys(shapes, "a.safetensors")}))
    return str(path)


def compare(kind: str, path: str) -> weights.Comparison:
    return weights.compare(llmir.load(CONFIGS[kind]), tensors.read(path))


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_we_expect_is_what_transformers_saves(kind: str) -> None:
    expected = weights.expected(llmir.load(CONFIGS[kind]))
    assert {name: tensor.shape for name, tensor in expected.items()} == stored(kind)
    assert {t.dtype for t in expected.values()} == {"bf16"}
    assert all(t.bytes == 2 * math.prod(t.shape) for t in expected.values())


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_checkpoint_as_saved_agrees_in_every_form(kind: str, tmp_path: Path) -> None:
    shapes = stored(kind)
    whole = header(shapes)
    parameters = sum(map(math.prod, shapes.values()))
    forms = [
        safetensors(tmp_path / "model.safetensors", whole),
        index(tmp_path / "index.json", shapes),
        index(tmp_path / "total.json", shapes, total_size=2.0 * parameters, total_parameters=parameters),
    ]
    (tmp_path / "header.json").write_text(json.dumps(whole), "utf-8")
    shards = tmp_path / "shards"
    shards.mkdir()
    names = list(shapes)
    for i in range(3):
        safetensors(shards / f"{i}.safetensors", header({n: shapes[n] for n in names[i::3]}))
    folder = tmp_path / "folder"
    folder.mkdir()
    index(folder / tensors.INDEX, shapes)
    for form in [*forms, str(tmp_path / "header.json"), str(shards), str(folder)]:
        assert compare(kind, form).agrees, form
        assert compare(kind, form).parameters == parameters


def test_only_headers_know_shapes(tmp_path: Path) -> None:
    shapes = stored("llama")
    assert not compare("llama", index(tmp_path / "index.json", shapes)).shapes_known
    assert compare("llama", safetensors(tmp_path / "model.safetensors", header(shapes))).shapes_known


def test_what_is_missing_extra_or_different_is_named(tmp_path: Path) -> None:
    shapes = stored("qwen3")
    q, k = "model.layers.1.self_attn.q_proj.weight", "model.layers.2.self_attn.k_proj.weight"
    del shapes["model.norm.weight"]
    shapes["model.norm.bias"] = (24,)
    shapes[q] = (24, 60)  # the right one is [60, 24]
    found = compare("qwen3", safetensors(tmp_path / "m.safetensors", header(shapes, {k: "F32"})))
    assert not found.agrees
    assert (found.missing, found.unexpected) == (("model.norm.weight",), ("model.norm.bias",))
    assert found.wrong_shape == (weights.Difference(q, "[60, 24]", "[24, 60]"),)
    assert found.wrong_dtype == (weights.Difference(k, "bf16", "fp32"),)


def test_a_total_that_differs_is_found(tmp_path: Path) -> None:
    shapes = stored("llama")
    found = compare("llama", index(tmp_path / "index.json", shapes, total_size=2, total_parameters=1))
    assert [d.name for d in found.wrong_total] == ["bytes", "parameters"]


def test_a_tied_head_may_be_stored_or_not(tmp_path: Path) -> None:
    shapes = stored("llama-tied")
    once = sum(map(math.prod, shapes.values()))
    shapes["lm_head.weight"] = (50, 24)
    for total in (once, once + 50 * 24):
        assert compare("llama-tied", index(tmp_path / "i.json", shapes, total_size=2 * total)).agrees
    shapes["lm_head.weight"] = (24, 50)
    wrong = compare("llama-tied", safetensors(tmp_path / "m.safetensors", header(shapes)))
    assert [d.name for d in wrong.wrong_shape] == ["lm_head.weight"]


# As old releases have them: Llama 2's files in the form of Hugging Face, Pythia's, and ChatGLM's.
CONSTANTS = (
    "model.layers.0.self_attn.rotary_emb.inv_freq",
    "gpt_neox.layers.0.attention.bias",
    "gpt_neox.layers.0.attention.masked_bias",
    "transformer.rotary_pos_emb.inv_freq",
)


@pytest.mark.parametrize("constant", CONSTANTS)
def test_an_index_may_count_constants(constant: str, tmp_path: Path) -> None:
    shapes, path = stored("llama"), tmp_path / "i.json"
    elements = sum(map(math.prod, shapes.values()))
    shapes[constant] = (2,)
    assert compare("llama", safetensors(tmp_path / "m.safetensors", header(shapes))).agrees
    for tables in (0, 8):  # some indexes were written before the tables were dropped
        found = compare("llama", index(path, shapes, total_size=2 * elements + tables))
        assert found.agrees, str(found)
    assert (found.found_tensors, found.ignored_tensors) == (len(shapes) - 1, 1)
    less = compare("llama", index(path, shapes, total_size=2 * elements - 2, total_parameters=elements - 1))
    assert less.wrong_total == (
        weights.Difference("bytes", f"at least {2 * elements:,}", f"{2 * elements - 2:,}"),
        weights.Difference("parameters", f"at least {elements:,}", f"{elements - 1:,}"),
    )


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_total_without_ignored_tensors_is_exact(kind: str, tmp_path: Path) -> None:
    shapes = stored(kind)
    total = 2 * sum(map(math.prod, shapes.values()))
    for more in (-2, 2):
        assert compare(kind, index(tmp_path / "i.json", shapes, total_size=total + more)).wrong_total


def raw(length: int, text: bytes) -> bytes:
    return length.to_bytes(8, "little") + text


TENSOR = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
MALFORMED = [
    ("empty.safetensors", b"", "0 bytes are too few"),
    ("cut.safetensors", raw(1000, b'{"a": '), "cut off, the header takes 1,000 bytes and 6 are there"),
    ("huge.safetensors", raw(2**62, b"{}"), "is not one of a safetensors file"),
    ("zero.safetensors", raw(0, b"{}"), "is not one of a safetensors file"),
    ("text.safetensors", raw(4, b"{no}"), "broken JSON at line 1, column 2"),
    ("bytes.safetensors", raw(2, b"\xff\xff"), "not UTF-8"),
    ("list.safetensors", raw(2, b"[]"), "expected a JSON object, got an empty list"),
    ("deep.json", b"[" * 100_000, "nested more than 8 deep"),
    ("none.json", b"", "the file is empty"),
    ("other.json", b'{"hidden_size": 3}', "no weight_map"),
    ("nothing.json", b"{}", "no weight_map"),
    ("map.json", b'{"weight_map": ["a"]}', "$.weight_map: expected an object"),
    ("total.json", b'{"weight_map": {"a": "b"}, "metadata": {"total_size": "3"}}', "$.metadata.total_size"),
    ("dtype.json", json.dumps({"a": {**TENSOR, "dtype": 3}}).encode(), '"a": dtype: expected text'),
    ("shape.json", json.dumps({"a": {**TENSOR, "shape": [-2]}}).encode(), "a list of integers"),
    ("true.json", json.dumps({"a": {**TENSOR, "shape": [True]}}).encode(), "a list of integers"),
    ("place.json", json.dumps({"a": {**TENSOR, "data_offsets": [4, 0]}}).encode(), "a start and an end"),
    (
        "bytes.json",
        json.dumps({"a": {**TENSOR, "shape": [3]}}).encode(),
        "4 bytes are reserved, BF16 [3] takes 6",
    ),
]


@pytest.mark.parametrize(("name", "data", "part"), MALFORMED, ids=[m[0] for m in MALFORMED])
def test_a_malformed_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes, part: str
) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]), "utf-8")
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", str(tmp_path), "--index", str(tmp_path / name)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith("error: ")
    assert part in said.err


def test_files_that_are_not_there_or_clash_are_errors(tmp_path: Path) -> None:
    for path, part in ((tmp_path / "none.json", "cannot be read"), (tmp_path, "neither a .safetensors")):
        with pytest.raises(ConfigError, match=part):
            tensors.read(str(path))
    for name in "ab":
        safetensors(tmp_path / f"{name}.safetensors", header({"x": (1,)}))
    with pytest.raises(ConfigError, match='"x" is in another file too'):
        tensors.read(str(tmp_path))


def test_the_command_tells_and_ends_by_the_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, shapes = tmp_path / "config.json", stored("qwen3-moe")
    model.write_text(json.dumps(CONFIGS["qwen3-moe"]), "utf-8")

    def check(path: str, *more: str) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["check", str(model), "--index", path, *more])
        said = capsys.readouterr()
        assert said.err == ""
        return ended.value.code, said.out

    good = safetensors(tmp_path / "m.safetensors", header(shapes))
    code, shown = check(good)
    assert code == 0
    assert "all agree" in shown
    names = [name for name in shapes if "experts" in name and "down_proj" in name]
    for name in names:
        del shapes[name]
    broken = safetensors(tmp_path / "m.safetensors", header(shapes))
    code, shown = check(broken)
    assert code == 1
    assert f"model.layers.*.mlp.experts.*.down_proj.weight ({len(names)} tensors)" in shown
    code, text = check(broken, "--format", "json")
    data = json.loads(text)
    assert (code, data["agrees"], data["missing"], data["unexpected"]) == (1, False, names, [])
