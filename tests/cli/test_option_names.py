"""What errors call things: options on the command line, arguments in Python, and ranges one way."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import llmir
from llmir.base.errors import InputError
from llmir.cli.command import COMMANDS, as_options
from tests.commands import Run

SIMULATED = ("serve-sim", "llama3.1-8b", "--rate", "2")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--think", "3"), "--think: 3; it requires --turns"),
        (("--warm-up", "2000"), "--warm-up: 2,000 requests"),
        (("--speed", "3"), "use --rate instead"),
        (("--closed", "3"), "serve-sim requires one of --rate, --closed or --trace"),
        (("--turns", "3", "--prefix-hits", "0.5"), "--prefix-hits: 0.5;"),
        (
            ("--link", "nvlink", "--replicas", "2"),
            "pools use --prefill-replicas and --decode-replicas instead",
        ),
        (("--cost", "ideal", "--efficiency", "memory=0.5"), "leave --cost out"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_of_a_command_names_options(run: Run, asked: tuple[str, ...], words: str) -> None:
    ran = run(*SIMULATED, *asked)
    assert ran.code == 2
    assert words in ran.err
    assert "_" not in ran.err


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("analyze", "llama3.2-1b", "--tp", "3"), "error: --tp 3: 8 KV heads"),
        (("analyze", "llama3.2-1b", "--pp", "99"), "error: --pp 99: "),
        (("analyze", "llama3.2-1b", "--weights", "fp4"), "error: --weights: unknown dtype"),
        (("sweep", "llama3.2-1b", "--tp", "3"), "refused: --tp 3: "),
        (("analyze", "llama3.2-1b", "-p", "shard{tp=3}"), "error: shard: tp 3: "),
        (("opt", "llama3.2-1b", "-p", "shard{tp=3}", "--tp", "2"), "error: shard: tp 3: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_of_a_pass_names_the_option_that_was_typed(
    run: Run, asked: tuple[str, ...], words: str
) -> None:
    ran = run(*asked)
    assert ran.code == 2
    assert words in ran.err


def test_the_same_error_in_python_names_the_argument() -> None:
    with pytest.raises(InputError, match=r"^think_s: 3; it requires turns$"):
        llmir.traffic(llmir.Traffic(rate=2, think_s=3))


def test_what_is_quoted_or_no_name_stays() -> None:
    """A value, a field of a config and an English word are none of ours."""
    params = [click.Option(["--max-model-len"]), click.Option(["--rate"]), click.Argument(["model"])]
    for text in (
        "rates: no",
        "$.max_model_len: 3",
        "x: expected 'max_model_len'",
        "the rate of it",
        "model: x",
    ):
        assert as_options(text, params) == text
    assert as_options("max_model_len: 3, and rate", params) == "--max-model-len: 3, and rate"


def test_each_option_of_each_command_has_a_name_that_errors_can_say() -> None:
    for of in COMMANDS.values():
        for option in (p for p in of.params if isinstance(p, click.Option)):
            said = as_options(f"{option.name}: wrong", of.params)
            assert re.fullmatch(r"--[a-z-]+: wrong", said), (of.name, option.name)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--efficiency", "memory=0.5"), "--efficiency: memory has no effect"),
        (
            ("--link", "25GBps", "--efficiency", "nvlink=0.5"),
            "--efficiency: has no effect with the rate of a link",
        ),
        (("--link", "25GBps", "--cost", "ideal"), "--cost: has no effect"),
        (("--engine", "vllm"), "--engine: has no effect"),
        (("--weights", "fp8"), "--weights: has no effect on caches"),
        (("--routing", "even"), "--routing: has no effect"),
        (
            ("--link", "network"),
            "--link network: H100-SXM has no node description; set --network or --cluster",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_act_on_a_cache_is_refused(run: Run, asked: tuple[str, ...], words: str) -> None:
    ran = run("kv", "llama3.1-8b", *asked)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_options_that_no_cache_depends_on_change_none_of_them(run: Run) -> None:
    """What is refused: bytes and time are the same with it."""
    whole = llmir.load("llama3.1-8b")
    fp8 = llmir.run(whole, "quantize{weights=fp8}")
    assert llmir.kv(fp8, "h100").to_dict() == llmir.kv(whole, "h100").to_dict()


@pytest.mark.parametrize("asked", [("max",), ("plan", "--rate", "1")])
def test_what_the_model_has_no_positions_for_is_an_error(run: Run, asked: tuple[str, ...]) -> None:
    ran = run(asked[0], "llama3.1-8b", *asked[1:], "--prompt", "200000")
    assert ran.code == 2
    said = "--prompt: 200,000 tokens and 128 generated are more than the 131,072 positions of Llama-3.1-8B"
    assert said in ran.err


@pytest.mark.slow
def test_a_table_of_many_axes_says_equal_figures_once_and_files_have_all(run: Run, tmp_path: Path) -> None:
    axes = ("--tp", "1,2", "--batch", "1,2", "--context", "1k,2k", "--weights", "bf16,fp8")
    ran = run("sweep", "llama3.1-8b", *axes)
    assert "fits yes, bound memory" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    assert run("sweep", "llama3.1-8b", *axes, "-o", "all.csv").code == 0
    heads = (tmp_path / "all.csv").read_text("utf-8").splitlines()[0].split(",")
    assert {"fits", "error", "memory_share"} <= {*heads}
