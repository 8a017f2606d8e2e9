"""--weights, --activations, --kv and --precision from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import llmir
from tests.commands import Run, config


def test_json_and_table_say_the_precision(run: Run) -> None:
    options = ("--weights", "fp8", "--activations", "fp8", "--kv", "fp8_e5m2")
    ran = run("analyze", "tiny.json", *options, "--format", "json")
    report = json.loads(ran.out)
    assert (ran.code, report["schema_version"]) == (0, 3)
    precision = {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8_e5m2", "collectives": None}
    assert report["precision"] == precision
    table = run("analyze", "tiny.json", *options).out
    assert "weights fp8, activations fp8 (vLLM on sm_90), KV cache fp8_e5m2" in " ".join(table.split())
    assert "layer.quantize_" in table or " quantize_" in table
    assert "precision   bf16" in run("analyze", "tiny.json", "--cost", "ideal").out


@pytest.mark.parametrize(
    "weights", ["fp8", "fp8_b128x128", "int8", "int4", "int4_g32", "nvfp4", "mxfp4", "fp16"]
)
def test_the_precision_is_said_as_it_was_asked(run: Run, weights: str) -> None:
    report = json.loads(run("analyze", "tiny.json", "--weights", weights, "--format", "json").out)
    assert report["precision"]["weights"] == weights


def test_the_title_of_a_picture_says_it(run: Run) -> None:
    assert run("draw", "tiny.json", "--weights", "int4", "--kv", "fp8", "-o", "tiny.dot").code == 0
    dot = Path("tiny.dot").read_text("utf-8")
    assert all(word in dot for word in ("int4,", "KV", "fp8)"))


def test_a_plan_is_a_yaml_file(run: Run) -> None:
    Path("plan.yaml").write_text("'*_proj': fp8  # all of them\ndown_proj: keep\nlm_head: int8\n", "utf-8")
    ran = run("opt", "tiny.json", "--weights", "int4", "--precision", "plan.yaml")
    assert ran.code == 0
    types = {
        line.split()[0]: line.rpartition(" : ")[2] for line in ran.out.splitlines() if " = weight(" in line
    }
    assert types["%down_proj.weight"].startswith("bf16[")
    assert types["%up_proj.weight"].startswith("fp8_e4m3_c.kn[")
    assert types["%lm_head.weight"].startswith("int8_c.nk[")


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("down_projj: fp8\n", "no module 'down_projj'; did you mean down_proj"),
        ("down_proj: fp7\n", "unknown dtype 'fp7'; did you mean"),
        ("down_proj: [\n", "broken YAML at line 2"),
        ("- down_proj\n", "such as down_proj: bf16 or mlp: {activations: keep}, got list"),
        ("down_proj: fp8\ndown_proj: bf16\n", "line 2, column 1: key 'down_proj' twice"),
        ("", "got NoneType"),
        ("down_proj: 8\n", "got down_proj: 8"),
        ("down_proj:\n  weights: 8\n", "got down_proj: {"),
        ("down_proj: {}\n", "got down_proj: {"),
        (
            "down_proj:\n  weight: fp8\n",
            "none of weights, activations, kv, collectives; did you mean weights",
        ),
        ("input_norm: {activations: fp8}\n", "'input_norm' has weights, but no activations; modules with"),
        ("down_proj: {activations: fp8}\n", "need weights of their kind and as narrow, not bf16"),
        ("down_proj: {activations: fp32}\n", "in the model's own type, bf16, got fp32"),
        ("down_proj: {kv: fp8}\n", "but no kv; modules with kv are k_cache, attention, v_cache"),
        ("down_proj: {collectives: fp8}\n", "no collective of 'down_proj'; nothing is sent; shard before"),
        ("a b: fp8\n", "expected module: dtype"),
        ("down_proj: !!python/name:os.system\n", "broken YAML"),
    ],
)
def test_a_bad_plan_is_one_line(run: Run, plan: str, says: str) -> None:
    Path("plan.yaml").write_text(plan, "utf-8")
    ran = run("analyze", "tiny.json", "--precision", "plan.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--weights", "fp9"), "unknown dtype 'fp9'; did you mean fp8"),
        (("--kv", "int4"), "kv: unknown dtype 'int4'; did you mean"),
        (("--activations", "fp8"), "--activations fp8: requires weights of the same kind"),
        (("--weights", "int8", "--activations", "fp8"), "no kernel multiplies"),
        (("--precision", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("--collectives", "fp9"), "collectives: unknown dtype 'fp9'; did you mean fp"),
        (("--collectives", "fp8"), "no collective joins ranks"),
        (("--tp", "3"), "allowed: 1, 2, 4"),
        (("--ep", "2"), "has no experts"),
    ],
)
@pytest.mark.parametrize("command", [("analyze",), ("draw",), ("explain", "q_proj"), ("opt",), ("diff",)])
def test_bad_options_are_one_line(
    run: Run, command: tuple[str, ...], options: tuple[str, str], says: str
) -> None:
    name, *rest = command
    ran = run(name, "tiny.json", *rest, *options)
    assert ran.code == 2
    assert says in ran.err
    assert ran.err.count("\n") == 1


def test_a_plan_says_it_by_role(run: Run) -> None:
    text = "mlp: {weights: fp8, activations: fp8}\nup_proj: {activations: keep}\nk_cache: {kv: int8}\n"
    Path("plan.yaml").write_text(text + "o_proj: {collectives: int8}\n", "utf-8")
    out = run("opt", "tiny.json", "--tp", "2", "--precision", "plan.yaml").out
    lines = {line.split()[0]: line for line in out.splitlines() if " = " in line}
    assert "(%quantize_post_norm, " in lines["%gate_proj"]
    assert "(%post_norm, " in lines["%up_proj"]
    assert "int8_c.mmmk[" in lines["%k_cache"]
    assert "bf16[" in lines["%v_cache"]
    assert [name for name in lines if name.startswith(("%all_", "%reduce_"))] == [
        *("%all_reduce_embedding", "%all_gather_lm_head", "%reduce_scatter_o_proj", "%all_gather_o_proj"),
        "%all_reduce_down_proj",
    ]


@pytest.mark.parametrize("command", ["opt", "diff"])
def test_the_options_of_analyze_do_the_same_in_other_commands(run: Run, command: str) -> None:
    """`opt` prints the program that `analyze` prices; both sides of `diff` are laid out.

    `opt` names no device, so that it changes weights alone unless it is told more.
    """
    options = ("--tp", "2", "--weights", "fp8", "--collectives", "fp8")
    priced = json.loads(run("analyze", "tiny.json", *options, "--format", "json").out)
    if command == "opt":
        passes = "fuse-attention,fuse,fuse-quantize,dce"
        ir = run("opt", "tiny.json", "-p", passes, *options, "--activations", "fp8", "-o", "tiny.ir")
        assert ir.code == 0
        again = json.loads(run("analyze", "tiny.ir", "--format", "json").out)
        assert {k: v for k, v in again.items() if k != "notes"} == {
            k: v for k, v in priced.items() if k != "notes"
        }
    else:
        found = json.loads(run("diff", "tiny.json", *options, "--format", "json").out)
        assert found["ttft_s"]["after"] == priced["ttft_s"]
        assert found["before"]["devices"] == found["after"]["devices"] == 2
        types, tail = "quantize{weights=fp8, activations=fp8}", "shard{tp=2},quantize{collectives=fp8}"
        assert found["before"]["pipeline"] == f"{types},{tail}"
        assert found["after"]["pipeline"] == f"{types},{llmir.pipeline_of('vllm')},{tail}"


def test_explain_shows_the_narrow_bytes(run: Run) -> None:
    ran = run("explain", "tiny.json", "down_proj", "--weights", "fp8", "--format", "json")
    weight = next(r for r in json.loads(ran.out)["reads"] if r["role"] == "weight")
    assert weight["value"] == 96 * 64 + 64 * 4


def test_a_device_without_the_unit_says_so(run: Run) -> None:
    ran = run("analyze", "tiny.json", "--hw", "a100", "--weights", "fp8", "--activations", "fp8")
    assert "has no fp8 matrix unit; fp8 runs at its bf16 rate" in ran.err
    assert "unit" not in run("analyze", "tiny.json", "--hw", "a100", "--weights", "fp8").err


def test_a_quantized_config_is_priced_as_it_is(run: Run, tmp_path: Path) -> None:
    scheme = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    name = config(tmp_path, quantization_config=scheme)
    report = json.loads(run("analyze", name, "--kv", "fp8", "--format", "json").out)
    precision = {"weights": "int4_g32z", "activations": "bf16", "kv_cache": "fp8", "collectives": None}
    assert report["precision"] == precision
    (tmp_path / "index.json").write_text(json.dumps({"weight_map": {"a": "b"}}), "utf-8")
    checked = run("check", name, "--index", "index.json")
    assert checked.code == 1
    assert "down_proj.qzeros" in checked.out
