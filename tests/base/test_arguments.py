"""The checked converters: what they give back, and what they say of what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.base import arguments
from llmir.base.errors import InputError, LlmirError
from llmir.ir.sizes.polynomial import B, Dim
from llmir.ir.tools.pipeline import PASSES
from tests.api.public_calls import PROGRAM, Odd


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (lambda: arguments.integer("n", np.int8(3)), 3),
        (lambda: arguments.integer("n", np.array(3)), 3),
        (lambda: arguments.number("n", np.float32(0.5)), 0.5),
        (lambda: arguments.number("n", 3), 3.0),
        (lambda: arguments.flag("n", np.bool_(True)), True),
        (lambda: arguments.text("n", np.str_("x")), "x"),
        (lambda: arguments.choice("n", True, (0, 1)), 1),
        (lambda: arguments.path("n", "x"), Path("x")),
        (lambda: arguments.items("n", (i for i in range(3)), "numbers"), (0, 1, 2)),
    ],
)
def test_what_is_right_comes_back_as_pythons_own(given_: Callable[[], Any], expected: object) -> None:
    found = given_()
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: arguments.integer("n", 1.0), "n: expected an integer from 0 to 2**48, got 1.0"),
        (lambda: arguments.integer("n", True, 1, 9), "n: expected an integer from 1 to 9, got True"),
        (lambda: arguments.number("n", float("nan")), "n: expected a number from 0 up, got nan"),
        (lambda: arguments.number("n", 2, 0, 1, above=True), "n: expected a number above 0 up to 1, got 2"),
        (lambda: arguments.number("n", True), "n: expected a number from 0 up, got True"),
        (
            lambda: arguments.choice("n", "flsh", ("flash", "eager")),
            "expected flash or eager, got 'flsh'; did you mean",
        ),
        (lambda: arguments.counts("n", [1, 2.5]), "n: expected integers from 0 to 2**48, got [1, 2.5]"),
        (lambda: arguments.items("n", "abc", "names"), "n: expected a list of names, got 'abc'"),
        (lambda: arguments.path("n", 5), "n: expected the name of a file, got 5"),
        (lambda: arguments.text("n", Odd()), "n: expected text, got <Odd instance"),
    ],
)
def test_what_is_wrong_is_named(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("option", "value"), [("tp", "1.5"), ("tp", "0"), ("dp", "true"), ("ep", "nan"), ("sp", "2")]
)
def test_an_option_has_one_error_in_python_and_in_a_pipeline(option: str, value: str) -> None:
    said = []
    for call in (
        lambda: PASSES["shard"](**{option: arguments.parse_field(value)}),
        lambda: llmir.run(PROGRAM, f"shard{{{option}={value}}}"),
    ):  # type: ignore[arg-type, call-arg]
        with pytest.raises(LlmirError) as error:
            call()
        said.append(str(error.value))
    assert said[0] == said[1]
    assert said[0].startswith(f"shard: {option}: expected ")


def test_sizes_are_no_fractions() -> None:
    assert isinstance(B, Dim)
    with pytest.raises(TypeError):
        B * 2.0  # type: ignore[operator]  # the mistake that is tested
