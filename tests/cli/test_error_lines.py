"""What is wrong with the input is said in one line, and nothing is left behind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.base import arguments as convert
from llmir.base.errors import LlmirError
from llmir.passes.route import Route
from llmir.passes.shard import Shard
from llmir.passes.stages import Stages
from tests.commands import TINY, Run, config
from tests.flat import records

DEVICE = "name: X\nvector_tflops: {fp32: 1}\nmemory_GiB: 8\nmemory_GBps: 100\n"


# What is wrong, the arguments, the exit code, and a part of the message.
BAD: list[tuple[str, tuple[str, ...], int, str]] = [
    ("unknown command", ("analize",), 2, "did you mean analyze?"),
    ("unknown option", ("analyze", "tiny.json", "--promt", "3"), 2, "--prompt"),
    ("no model", ("analyze",), 2, "missing argument 'MODEL'"),
    ("unknown model", ("analyze", "llama3.1-8x"), 2, "did you mean Llama-3.1-8B"),
    ("unknown device", ("analyze", "tiny.json", "--hw", "h100-xsm"), 2, "did you mean h100-sxm"),
    ("missing config", ("analyze", "./none.json"), 2, "no such file"),
    ("folder without a config", ("analyze", "./folder"), 2, "no config.json"),
    ("empty config", ("analyze", "empty.json"), 2, "the file is empty"),
    ("broken config", ("analyze", "broken.json"), 2, "broken JSON at line 1"),
    ("config that is a list", ("analyze", "list.json"), 2, "expected a JSON object"),
    ("config without keys", ("analyze", "keys.json"), 2, "architectures"),
    ("zero batch", ("analyze", "tiny.json", "--batch", "0"), 2, "--batch: expected an integer"),
    ("negative batch", ("analyze", "tiny.json", "--batch", "-1"), 2, "from 1 to 1,000,000,000, got -1"),
    ("fractional batch", ("analyze", "tiny.json", "--batch", "1.5"), 2, "got 1.5"),
    ("batch in digits that are not ASCII", ("analyze", "tiny.json", "--batch", "٣"), 2, "got '٣'"),
    (
        "batch beyond reason",
        ("analyze", "tiny.json", "--batch", "9" * 25),
        2,
        "1,000,000,000, got 9999999",
    ),
    ("prompt 0", ("analyze", "tiny.json", "--prompt", "0"), 2, "--prompt: expected an integer from 1 to 10,"),
    ("generate 0", ("analyze", "tiny.json", "--generate", "0"), 2, "--generate: expected an integer"),
    ("utilization 0", ("analyze", "tiny.json", "--memory-utilization", "0"), 2, "above 0"),
    ("utilization above 1", ("analyze", "tiny.json", "--memory-utilization", "1.01"), 2, "up to 1"),
    ("utilization NaN", ("analyze", "tiny.json", "--memory-utilization", "nan"), 2, "got nan"),
    ("negative reserve", ("analyze", "tiny.json", "--reserve", "-1GiB"), 2, "from 0 to 2**48, got -1"),
    ("reserve in no unit", ("analyze", "tiny.json", "--reserve", "3 parsecs"), 2, "such as 2GiB"),
    ("reserve of all there is", ("analyze", "tiny.json", "--reserve", "99TB"), 2, "leaves nothing"),
    ("limit that is no number", ("analyze", "tiny.json", "--max-ttft", "fast"), 2, "'fast'"),
    ("limit of no unit", ("analyze", "tiny.json", "--max-ttft", "3days"), 2, "3days has no unit"),
    (
        "unknown format",
        ("analyze", "tiny.json", "--format", "xml"),
        2,
        "expected one of csv, html, json, md, page, table",
    ),
    (
        "attention beside a pipeline",
        ("analyze", "tiny.json", "-p", "fuse", "--attention", "eager"),
        2,
        "--pipeline",
    ),
    ("degree that does not divide", ("analyze", "tiny.json", "--tp", "64"), 2, "--tp 64: "),
    ("tokens over one rank", ("analyze", "tiny.json", "--sp"), 2, "split over tensor-parallel ranks"),
    ("nothing sent", ("diff", "tiny.json", "--collectives", "fp8"), 2, "no collective joins ranks"),
    ("degree of nothing", ("opt", "tiny.json", "--tp", "0"), 2, "from 1 to 1,048,576, got 0"),
    ("experts of a dense model", ("analyze", "tiny.json", "--dp", "2", "--ep", "2"), 2, "has no experts"),
    (
        "ranks that no link joins",
        ("analyze", "tiny.json", "--tp", "2", "--hw", "cpu"),
        2,
        "no link that joins 2",
    ),
    ("empty dtype", ("analyze", "tiny.json", "--weights", ""), 2, "--weights: it is empty"),
    ("unknown attention", ("analyze", "tiny.json", "--attention", "slow"), 2, "'eager'"),
    ("unknown pass", ("analyze", "tiny.json", "-p", "fuze"), 2, "did you mean fuse"),
    ("unknown suffix", ("analyze", "tiny.json", "-o", "out.xml"), 2, ".csv, .html, .json, .md, .txt"),
    ("no suffix", ("analyze", "tiny.json", "-o", "out"), 2, ".csv, .html, .json, .md, .txt"),
    (
        "no suffix, and a folder",
        ("analyze", "tiny.json", "-o", "folder", "--format", "csv"),
        2,
        "is a folder",
    ),
    ("suffix against format", ("analyze", "tiny.json", "-o", "out.json", "--format", "csv"), 2, "means json"),
    ("output in no folder", ("analyze", "tiny.json", "-o", "none/out.json"), 2, "there is no folder"),
    ("output that is a folder", ("analyze", "tiny.json", "-o", "folder.json"), 2, "is a folder"),
    ("output with too long a name", ("analyze", "tiny.json", "-o", "a" * 300 + ".json"), 2, "name"),
    ("device with an unknown key", ("analyze", "tiny.json", "--hw", "key.yaml"), 2, "unknown key 'speed'"),
    (
        "device with a negative rate",
        ("analyze", "tiny.json", "--hw", "negative.yaml"),
        2,
        "memory_GBps must be a number above 0",
    ),
    ("device that runs code", ("analyze", "tiny.json", "--hw", "code.yaml"), 2, "code.yaml"),
    ("picture of an unknown kind", ("draw", "tiny.json", "-o", "out.bmp"), 2, ".dot, .gv, .pdf, .png, .svg"),
    ("picture to stdout", ("draw", "tiny.json", "-o", "-"), 2, "a picture must be written to a file"),
    ("picture in no folder", ("draw", "tiny.json", "-o", "none/out.svg"), 2, "there is no folder"),
    (
        "picture of no step",
        ("draw", "tiny.json", "--phase", "decode", "--generate", "1"),
        2,
        "no decode step",
    ),
    ("missing IR", ("opt", "none.ir"), 2, "none.ir: cannot be read"),
    ("broken IR", ("opt", "broken.ir"), 2, "broken.ir: line 3: unknown op 'foo'"),
    ("IR with the wrong type", ("opt", "type.ir"), 2, "fp32[B, T]) is stated"),
    ("IR with an axis of no size", ("opt", "axis.ir"), 2, "the size of axis 'z'"),
    ("IR with an unbound symbol", ("analyze", "symbol.ir"), 2, "symbol 'Q' has no value"),
    ("IR that is not text", ("opt", "binary.ir"), 2, "not UTF-8"),
    ("logits of IR", ("opt", "type.ir", "--logits", "all"), 2, "--logits"),
    ("IR to another suffix", ("opt", "tiny.json", "-o", "out.txt"), 2, ".ir"),
    ("unknown op", ("explain", "tiny.json", "qkv_prj"), 2, "did you mean qkv_proj"),
    ("models that are not there", ("models", "gpt-7"), 2, "unknown model 'gpt-7'"),
    ("device that is not there", ("hw", "abacus"), 2, "unknown device 'abacus'"),
    ("one pass and both sides", ("diff", "tiny.json", "--pass", "fuse", "--before", "dce"), 2, "both sides"),
    ("one pass and two models", ("diff", "tiny.json", "tiny.json", "--pass", "fuse"), 2, "MODEL2"),
    ("two passes as one", ("diff", "tiny.json", "--pass", "fuse,dce"), 2, "got 'fuse,dce'"),
    ("a pass that is not there", ("diff", "tiny.json", "--pass", "fuze"), 2, "did you mean fuse"),
    ("unknown pass before", ("diff", "tiny.json", "--before", "fuze"), 2, "did you mean fuse"),
    ("unknown pass after", ("diff", "tiny.json", "--after", "fuse{x=1}"), 2, "option 'x'"),
    ("unknown second model", ("diff", "tiny.json", "llama3.1-8x"), 2, "did you mean Llama-3.1-8B"),
    ("unknown second device", ("diff", "tiny.json", "--hw-after", "h100-xsm"), 2, "did you mean h100-sxm"),
    ("no model to compare", ("diff",), 2, "missing argument 'MODEL'"),
    (
        "difference to another suffix",
        ("diff", "tiny.json", "-o", "out.svg"),
        2,
        ".csv, .html, .json, .md, .txt",
    ),
    ("passes to another suffix", ("passes", "-o", "out.ir"), 2, ".csv, .html, .json, .md, .txt"),
    ("passes of something", ("passes", "fuse"), 2, "unexpected extra argument"),
    ("check against nothing", ("check", "tiny.json"), 2, "--index"),
]
FILES = {
    "empty.json": " \n",
    "broken.json": '{"hidden_size": }',
    "list.json": "[1]",
    "keys.json": "{}",
    "key.yaml": DEVICE + "speed: 1\n",
    "negative.yaml": DEVICE.replace("100", "-100"),
    "code.yaml": '!!python/object/apply:os.system ["touch ran"]\n',
    "broken.ir": 'program "x"\ngraph @main {\n  %x = foo() : bf16[2]\n  return %x\n}\n',
    "type.ir": "graph @main {\n  %x = input() : bf16[B, T]\n  %y = silu(%x) : fp32[B, T]\n  return %y\n}\n",
    "axis.ir": "graph @main {\n  %x = input() : bf16[B, T]\n"
    '  %y = linear(%x, %x) {einsum="a b, a b -> a z"} : bf16[B, T]\n  return %y\n}\n',
    "symbol.ir": "graph @main {\n  %x = input() : bf16[B, Q]\n  %y = silu(%x) : bf16[B, Q]\n  return %y\n}\n",
}


def bad(run: Run, folder: Path, arguments: tuple[str, ...], code: int, part: str) -> None:
    """It ends with that code and one line that holds `part`, and leaves no file behind."""
    before = sorted(folder.rglob("*"))
    ran = run(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert re.fullmatch(r"error: [^\n]+\n", ran.err)
    assert part in ran.err
    assert "Traceback" not in ran.err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("arguments", "code", "part"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_one_line(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, part: str
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "binary.ir").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.json").mkdir()
    bad(run, tmp_path, arguments, code, part)


@pytest.mark.parametrize(
    ("changes", "code", "part"),
    [
        ({"hidden_size": "64"}, 2, "$.hidden_size"),
        ({"hidden_size": float("inf")}, 2, "Infinity"),
        ({"num_key_value_heads": 3}, 2, "3 does not divide 4"),
        ({"num_hidden_layers": 0}, 2, "$.num_hidden_layers"),
        ({"num_hidden_layers": 2**47}, 2, "to 10,000, got 140737488355328"),
        ({"final_logit_softcapping": 30.0}, 3, "$.final_logit_softcapping: 30.0 is not modelled"),
        ({"intermediate_size": -1}, 2, "$.intermediate_size"),
        ({"vocab_size": None}, 2, "$.vocab_size"),
        ({"architectures": ["<b>ForCausalLM"]}, 3, "; supported are "),
        ({"architectures": ["Qwen3VLMoeForCausalLM"]}, 3, "did you mean Qwen3MoeForCausalLM"),
    ],
)
@pytest.mark.parametrize("command", ["analyze", "opt"])
def test_a_config_that_cannot_be_is_one_line(
    run: Run, tmp_path: Path, command: str, changes: dict[str, Any], code: int, part: str
) -> None:
    bad(run, tmp_path, (command, config(tmp_path, **changes)), code, part)


@pytest.mark.parametrize("option", ["--batch", "--concurrency"])
def test_more_requests_than_a_server_has_are_refused_before_anything_is_priced(run: Run, option: str) -> None:
    ran = run("analyze", "no-such-model", option, "100000000000")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith(f"error: {option}: ") and "1,000,000,000" in ran.err


@pytest.mark.parametrize("options", ["--tp 7", "--routing zipf", "--dispatch ranks", "--pp 99"])
@pytest.mark.parametrize("command", ["analyze", "diff"])
def test_an_error_names_a_pipeline_that_the_user_wrote_and_no_other(
    run: Run, command: str, options: str
) -> None:
    ran = run(command, "deepseek-v3", *options.split())
    assert ran.code == 2
    assert ran.err.startswith(f"error: {options.split(maxsplit=1)[0]}")
    assert "in pass" not in ran.err
    written = {"analyze": ["--pipeline", "dce"], "diff": ["--before", "dce"]}[command]
    assert "[in pass " in run(command, "deepseek-v3", *options.split(), *written).err


@pytest.mark.parametrize("model", ["falcon-mamba-7b", "deepseek-v4-flash"])
def test_attention_that_has_one_form_is_not_asked_for_in_another(
    run: Run, tmp_path: Path, model: str
) -> None:
    bad(run, tmp_path, ("analyze", model, "--attention", "eager"), 2, "has no attention to leave unfused")


def test_a_file_without_permission_is_left_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.json").write_text("old", "utf-8")
    monkeypatch.setattr(os, "access", lambda path, how: Path(path).name != "out.json")
    bad(run, tmp_path, ("analyze", "tiny.json", "-o", "out.json"), 2, "no permission")
    assert (tmp_path / "out.json").read_text("utf-8") == "old"


def test_a_write_that_fails_leaves_the_old_file_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "out.json").write_text("old", "utf-8")
    monkeypatch.setattr(os, "replace", full)
    bad(run, tmp_path, ("analyze", "tiny.json", "-o", "out.json"), 2, "No space left")
    assert (tmp_path / "out.json").read_text("utf-8") == "old"


WRONG = (
    "nan",
    "inf",
    "1e99999",
    "-4",
    "0",
    "8.5",
    "true",
    "1_0",
    "٣",
    "１",
    "0x10",
    "9" * 500,
    "",
    " ",
    "None",
)
TAKEN: dict[str, Callable[[Any], object]] = {
    **{name: lambda value, name=name: job(**{name: value}) for name in ("batch", "prompt", "generate")},  # type: ignore[misc]
    **{name: lambda value, name=name: Shard(**{name: value}) for name in ("tp", "dp", "ep")},  # type: ignore[misc]
    "memory-utilization": lambda value: job(memory_utilization=value),
    "micro-batches": lambda value: Stages(micro_batches=value),
    "pp": lambda value: Stages(pp=value),
    "routing-skew": lambda value: Route(skew=value),
}


def job(**asked: Any) -> object:
    return llmir.workload(llmir.load(TINY), "h100-sxm", **records(llmir.workload, **asked))


@pytest.mark.parametrize("option", TAKEN)
def test_an_option_is_refused_in_the_words_of_the_api(run: Run, option: str) -> None:
    for value in WRONG:
        ran = run("analyze", "tiny.json", f"--{option}={value}")
        try:
            TAKEN[option](convert.parse_field(value.strip()))
        except LlmirError as error:
            assert (ran.code, ran.out) == (2, "")
            assert ran.err == f"error: --{option}: {str(error)[str(error).index('expected') :]}\n"
        else:
            assert "--" not in ran.err.partition("\n")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("serve-sim tiny.json --trace r.csv --requests-out r.csv", "error: r.csv: is named twice"),
        (
            "serve-sim tiny.json --rate 1 --requests-out r.csv --steps-out r.csv",
            "error: r.csv: is named twice",
        ),
        ("serve-sim tiny.json --closed 3 --turns 3", "leave out --closed"),
        ("sweep tiny.json --jobs 0", "error: --jobs: expected an integer from 1"),
        (
            "sweep tiny.json --price h100-sxm=2,h100=3",
            "error: --price: h100-sxm and h100 name the same device",
        ),
    ],
)
def test_options_that_contradict_are_one_line_and_write_nothing(
    run: Run, tmp_path: Path, line: str, part: str
) -> None:
    bad(run, tmp_path, tuple(line.split()), 2, part)
    assert not (tmp_path / "r.csv").exists()
