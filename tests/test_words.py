"""What errors call things: options on the command line, arguments in Python, and ranges one way."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import llmir
from llmir.cli import COMMANDS
from llmir.cli.command import as_options
from llmir.errors import InputError
from tests.commands import Run, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, tmp_path, monkeypatch)


SIMULATED = ("serve-sim", "llama3.1-8b", "--rate", "2")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--think", "3"), "--think: 3; it is of sessions, say --turns too"),
        (("--warm-up", "2000"), "--warm-up: 2,000 requests"),
        (("--speed", "3"), "say --rate instead"),
        (("--closed", "3"), "by one of --rate, --closed and --trace"),
        (("--turns", "3", "--prefix-hits", "0.5"), "--prefix-hits: 0.5;"),
        (("--link", "nvlink", "--replicas", "2"), "--prefill-replicas and --decode-replicas say how many"),
        (("--cost", "ideal", "--efficiency", "memory=0.5"), "leave --cost out"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_of_a_command_names_options(run: Run, asked: tuple[str, ...], words: str) -> None:
    ran = run(*SIMULATED, *asked)
    assert ran.code == 2
    assert words in ran.err
    assert "_" not in ran.err


def test_the_same_error_in_python_names_the_argument() -> None:
    with pytest.raises(InputError, match=r"^think_s: 3; it is of sessions, say turns too$"):
        llmir.traffic(rate=2, think_s=3)


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
