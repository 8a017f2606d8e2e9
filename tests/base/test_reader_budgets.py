"""Files that were made to be slow, large or deep end in one line, soon: each reader stops at its budget."""

from __future__ import annotations

import json
import re
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from llmir.backends.export.json import to_csv
from llmir.base.errors import UnreadableError
from llmir.base.readers import Budget, escape_formula, load_json, load_yaml
from tests.commands import TINY, Run

DEVICE = "name: X\nvector_tflops: {fp32: 1}\nmemory_GiB: 8\nmemory_GBps: 100\n"
MOE = TINY | {"architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 8, "num_experts_per_tok": 2}
HEAD = "graph @main {\n  %x = input() : bf16[B, T, 8]\n"
TABLE = "gpu,framework,dtype,m,n,k,latency_us\n"


def nested(levels: int, times: int, each: int) -> str:
    """Graphs that repeat the one below, `each` times with `times` iterations."""
    text = f"graph @g{levels} {{\n  %x = input() : bf16[B]\n  %y = silu(%x) : bf16[B]\n  return %y\n}}\n"
    for i in range(levels - 1, -1, -1):
        text += f"graph @{f'g{i}' if i else 'main'} {{\n  %v0 = input() : bf16[B]\n"
        for n in range(each):
            text += f"  %v{n + 1} = repeat(%v{n}) {{body=g{i + 1}, times={times}}} : bf16[B]\n"
        text += f"  return %v{each}\n}}\n"
    return text


def size(text: str) -> str:
    return f"graph @main {{\n  %x = input() : bf16[{text}]\n  return %x\n}}\n"


def header(text: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text.encode()


LAUGHS = "a0: &a0 [1, 1]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 25))
# A file, what it holds, and what is said of it; the suffix says what reads it.
FILES: list[tuple[str, str | bytes, str]] = [
    ("merges.yaml", MERGES, "more than 20,000 values, those of aliases counted"),
    ("laughs.yaml", LAUGHS, "more than 20,000 values, those of aliases counted"),
    ("wide.yaml", "".join(f"k{i}: 1\n" for i in range(30_000)), "more than 20,000 values"),
    ("brackets.yaml", "[" * 100_000, "nested more than 32 deep"),
    ("braces.yaml", "{a: " * 100_000, "nested more than 32 deep"),
    ("dashes.yaml", "- " * 100_000, "nested more than 32 deep"),
    ("questions.yaml", "? " * 100_000, "nested more than 32 deep"),
    ("indents.yaml", "".join(" " * i + "a:\n" for i in range(1400)), "nested more than 32 deep"),
    ("itself.yaml", "a: &a {b: *a}", "*a is inside of itself"),
    ("digits.yaml", f"{DEVICE}price_per_hour_usd: {'9' * 100_000}", "a number of more than 100 digits"),
    ("sixties.yaml", f"{DEVICE}price_per_hour_usd: 1{':59' * 300_000}", "a number of more than 100 digits"),
    ("large.yaml", "x: " + "a" * 2_000_000, "too large: more than 1,048,576 bytes"),
    ("deep.json", "[" * 1_000_000, "more than 200,000 values"),
    ("objects.json", '{"a":' * 200_000, "more than 200,000 values"),
    ("closed.json", '{"a":' + "[" * 5000 + "]" * 5000 + "}", "nested more than 32 deep"),
    ("open.json", '{"a":' + "[" * 50_000, "nested more than 32 deep"),
    ("digits.json", '{"hidden_size": ' + "1" * 1_000_000 + "}", "a number of more than 400 digits"),
    ("empty.json", "[" + "{}," * 1_300_000 + "{}]", "more than 200,000 values"),
    ("twice.json", '{"a":1,"a":2}', "occurs twice, as 1 and 2"),
    ("quotes.json", '"' + '\\"' * 1_000_000, "more than 200,000 values"),
    ("layers.json", json.dumps({**MOE, "num_experts": 4, "num_hidden_layers": 2**40}), "num_hidden_layers"),
    ("experts.json", json.dumps({**MOE, "num_experts": 2**40}), "to 1,048,576"),
    (
        "brackets.ir",
        f"{HEAD}  %y = silu(%x) {{block={'(' * 50_000}}} : bf16[B]\n",
        "nested more than 32 deep",
    ),
    ("size.ir", size("(" * 3000 + "1" + ")" * 3000), "nested more than 32 deep"),
    ("spaces.ir", f"{HEAD}  %y = silu(%x){' ' * 90_000}x\n", "expected %name = op"),
    ("quotes.ir", f'{HEAD}  %y = silu(%x) {{block="{chr(92)}"{chr(92) + chr(34)}' * 9000 + "}\n", "line 3"),
    (
        "line.ir",
        f"{HEAD}  %y = silu(%x) {{block={'x' * 200_000}}} : bf16[B]\n",
        "more than 100,000 characters",
    ),
    ("digits.ir", size("9" * 5000), "a number of more than 400 digits"),
    ("number.ir", size("9" * 90), "expected integers, symbols"),
    ("dimension.ir", size("9" * 20), "an integer from 1 to 2**48"),
    ("minus.ir", size("-" * 50_000 + "1"), "expected integers, symbols"),
    ("product.ir", size("*".join(["(B+T+C+1)"] * 200)), "expected integers, symbols"),
    ("rank.ir", size(", ".join(["B"] * 17)), "a tensor of 17 dimensions"),
    ("paths.ir", nested(40, 2, 2), "repeats are nested more than 6 deep"),
    ("times.ir", nested(12, 1000, 1), "repeats are nested more than 6 deep"),
    ("many.ir", nested(5, 2, 60), "ops: the limit is 2,000,000"),
    ("round.ir", nested(1, 2, 1).replace("silu(%x)", "repeat(%x) {body=main, times=2}"), "repeats itself"),
    ("mesh.ir", f"mesh(tp0=1000000007)\n{HEAD}  return %x\n}}\n", "mesh of 1,000,000,007 devices"),
    ("steps.ir", f'program "x"\nmicro_batches {"9" * 5000}\n{HEAD}  return %x\n}}\n', "more than 400 digits"),
    ("cell.csv", TABLE + "x" * 2_000_000, "line 2 has more than 100,000 characters"),
    ("columns.csv", ",".join(["c"] * 2000) + "\n", "2,000 columns; the limit is 1,000"),
    ("quote.csv", f'{TABLE}"' + "x\n" * 500_000, "not readable as CSV"),
    ("lines.csv", TABLE + "\n" * 1_000_001, "more than 1,000,000 lines"),
    ("deep.safetensors", header("[" * 1_000_000), "more than 600,000 values"),
    ("long.safetensors", header("{}", 2**62), "is not one of a safetensors file"),
    (
        "digits.safetensors",
        header('{"a": {"dtype": "F32", "shape": [' + "9" * 90_000),
        "more than 400 digits",
    ),
    (
        "shape.safetensors",
        header(json.dumps({"a": {"dtype": "F32", "shape": [2**60] * 90_000, "data_offsets": [0, 0]}})),
        "shape: expected at most 32 numbers",
    ),
    (
        "wide.safetensors",
        header("{" + ",".join(f'"k{i}":{{}}' for i in range(700_000)) + "}"),
        "600,000 values",
    ),
]
READERS: dict[str, Callable[[str], tuple[str, ...]]] = {
    ".yaml": lambda name: ("analyze", "tiny.json", "--hw", f"./{name}"),
    ".json": lambda name: ("analyze", f"./{name}"),
    ".ir": lambda name: ("analyze", name),
    ".csv": lambda name: ("validate", name),
    ".safetensors": lambda name: ("check", "tiny.json", "--index", name),
}


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize(("name", "content", "says"), FILES, ids=[name for name, _, _ in FILES])
def test_a_file_beyond_its_budget_is_one_line_soon(
    run: Run, name: str, content: str | bytes, says: str
) -> None:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    arguments = READERS[Path(name).suffix](name)
    run(*arguments)  # what is imported is no part of it
    start = time.process_time()
    ran = run(*arguments)
    assert time.process_time() - start < 20  # some 0.4 s alone, minutes and more without a budget
    assert (ran.code, ran.out) == (2, "")
    assert re.fullmatch(r"error: [^\n]{1,400}\n", ran.err)
    assert says in ran.err


@pytest.mark.parametrize("name", ["laughs.yaml", "merges.yaml"])
def test_a_plan_has_the_same_budget(run: Run, name: str) -> None:
    Path(name).write_text({n: c for n, c, _ in FILES}[name], "utf-8")  # type: ignore[arg-type]
    ran = run("analyze", "tiny.json", "--precision", name)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "those of aliases counted" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wide.safetensors", "empty.json", "wide.yaml", "quote.csv", "many.ir"])
def test_a_file_beyond_its_budget_takes_little_memory(run: Run, name: str) -> None:
    content = {n: c for n, c, _ in FILES}[name]
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    arguments = READERS[Path(name).suffix](name)
    run("models")  # what is imported is no part of it
    tracemalloc.start()
    try:
        run(*arguments)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 120e6  # and the interpreter with its libraries has some 60 MB


# --- what is within the budget is read as before ---------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: [1, 2.5, yes, ~, 'x', \"y\\n\", 2024-01-01, 0x1F, 1_000, .inf, 1e3, on]\n",
        "a: &x {k: 1, l: 2}\nb: *x\nc: {<<: *x, l: 3}\nd: {<<: [{m: 1}, *x], n: {}}\n",
        "{a: [], b: {}, c: [[1], [[2]]], '<<': 1, ? [1] : 2}\n".replace(", ? [1] : 2", ""),
        "a: |\n  text\n  more\nb: >\n  folded\n  text\n? c\n: d\n1: 2\n",
        "!!str 5: !!int '7'\nb: !!float 3\nc: ! x\n",
        "",
        "# nothing\n",
        "--- 5\n...\n",
        "just text\n",
    ],
)
def test_yaml_means_what_pyyaml_says(text: str) -> None:
    import yaml

    assert load_yaml(text.encode()) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\n---\nb: 2\n", "a second document"),
        ("a: *b\n", "nothing is called *b"),
        ("{<<: 5}\n", "<< takes mappings"),
        ("? [1]\n: 2\n", "a key must be text or a number"),
        ("a: !!binary aGk=\n", "tag tag:yaml.org,2002:binary is not read"),
        ("a: !!set {x}\n", "is not read"),
        ("a: !!int x\n", "'x' is no int"),
        ("a: 1\n'a': 2\n", "key 'a' twice"),
        ("a: [1\n", "broken YAML at line 2"),
        ("a: \x01", "broken YAML"),
    ],
)
def test_yaml_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(UnreadableError, match=re.escape(says)):
        load_yaml(text.encode())


@pytest.mark.parametrize(
    "data", [{"a": 'quo"te [{(, \\'}, {"a": [[], {}, [{}]]}, {"a": "\\\\", "b": ["]", "}"]}, {}, {"n": 1e5}]
)
def test_json_means_what_json_says(data: object) -> None:
    for indent in (None, 2):
        assert load_json(json.dumps(data, indent=indent).encode(), Budget(10**4, 100, 8)) == data


def test_a_budget_is_exact() -> None:
    budget = Budget(bytes=1000, nodes=6, depth=3)
    assert load_json(b"[[[1, 2, 3]]]", budget) == [[[1, 2, 3]]]
    for text, says in (
        (b"[[[[1]]]]", "nested more than 3 deep"),
        (b"[1, 2, 3, 4, 5, 6, 7]", "more than 6 values"),
    ):
        with pytest.raises(UnreadableError, match=says):
            load_json(text, budget)
    assert load_yaml(b"[[[1, 2, 3]]]", Budget(1000, 6, 4)) == [[[1, 2, 3]]]
    for text, budget in ((b"[[[1, 2, 3]]]", Budget(1000, 5, 4)), (b"[[[1, 2, 3]]]", Budget(1000, 6, 3))):
        with pytest.raises(UnreadableError, match="more than"):
            load_yaml(text, budget)


# --- what is written for others --------------------------------------------------------------------


def test_no_cell_is_a_formula_and_numbers_stay_numbers() -> None:
    rows = [{"name": "=HYPERLINK(0)", "-1+1": -1.5, "c": "@x", "d": "-3", "e": None, "f": "\tx", "g": "a=b"}]
    assert to_csv(rows) == "name,'-1+1,c,d,e,f,g\n'=HYPERLINK(0),-1.5,'@x,-3,,'\tx,a=b\n"
    assert all(escape_formula(x) == x for x in (-5, "-5", "+1.5e-3", "", "x", 0.0, True))
