"""A config is read field by field, and whatever is wrong with it is one line that names the field."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.base.errors import ConfigError, UnsupportedError
from llmir.frontends.config.reader import Config

from .messages import message

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


def config(**fields: object) -> Config:
    return Config(fields, name="tiny")


@pytest.mark.slow
@given(json_values)
def test_any_json_value_is_a_positive_integer_or_a_config_error(value: object) -> None:
    try:
        got = config(hidden_size=value).integer("hidden_size")
    except ConfigError as error:
        assert str(error).startswith("$.hidden_size: expected an integer from 1 to 2**48")
        assert str(error).isprintable()
    else:
        assert got is value and type(got) is int and got >= 1


@pytest.mark.mostly_slow(8)
@given(json_values)
@pytest.mark.parametrize(
    "accessor",
    ["number", "optional_number", "flag", "text", "texts", "optional_integer", "nested", "integers"],
)
def test_no_accessor_raises_anything_but_config_errors(accessor: str, value: object) -> None:
    try:
        getattr(config(key=value), accessor)("key")
    except ConfigError as error:
        assert str(error).startswith("$.key") and str(error).isprintable()


@given(json_values)
def test_any_json_value_is_a_known_dtype_or_a_config_error(value: object) -> None:
    try:
        assert config(torch_dtype=value).dtype() in {"bf16", "fp16", "fp32"}
    except ConfigError as error:
        assert str(error).startswith("$.torch_dtype: expected one of bfloat16, float16, float32")


@given(json_values)
def test_any_value_is_allowed_or_unsupported(value: object) -> None:
    try:
        config(key=value).unmodelled("key", ("silu", 1, None), "no reason")
    except UnsupportedError as error:
        assert str(error).startswith("$.key: ") and str(error).isprintable()
    else:
        assert value in ("silu", 1, None) and value is not True


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("4096", '"4096"'),
        (4096.0, "4096.0"),
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (-1, "-1"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        ([4096], "a list"),
        ({}, "an object"),
        ("a\nb\x1b[31m", r'"a\nb\u001b[31m"'),
    ],
)
def test_the_error_shows_the_value_as_json_writes_it(value: object, shown: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(hidden_size=value).integer("hidden_size")
    assert message(error) == f"$.hidden_size: expected an integer from 1 to 2**48, got {shown}"


def test_a_required_field_that_is_absent_is_missing() -> None:
    for accessor in ("integer", "number", "flag", "text"):
        with pytest.raises(ConfigError) as error:
            getattr(config(), accessor)("hidden_size")
        assert message(error) == "$.hidden_size: missing"


def test_absent_is_the_default_and_null_is_not() -> None:
    assert config().integer("num_key_value_heads", 32) == 32
    with pytest.raises(ConfigError, match="got null"):
        config(num_key_value_heads=None).integer("num_key_value_heads", 32)


def test_optional_fields_take_null_and_absence_for_none() -> None:
    for fields in ({}, {"key": None}):
        assert config(**fields).optional_integer("key") is None
        assert config(**fields).nested("key") is None
        assert config(**fields).integers("key", (1,)) == (1,)


@pytest.mark.parametrize("value", [2**48 + 1, 10**400, 10**5000], ids=["2**48", "no float", "no str"])
def test_absurd_sizes_are_errors(value: int) -> None:
    with pytest.raises(ConfigError) as error:
        config(vocab_size=value).integer("vocab_size")
    assert "2**48" in message(error) and len(message(error)) < 160


def test_a_field_may_have_a_largest_value_of_its_own() -> None:
    assert config(num_hidden_layers=10_000).integer("num_hidden_layers", maximum=10_000) == 10_000
    with pytest.raises(ConfigError) as error:
        config(num_hidden_layers=2**47).integer("num_hidden_layers", maximum=10_000)
    assert message(error) == f"$.num_hidden_layers: expected an integer from 1 to 10,000, got {2**47}"


def test_what_is_assumed_of_an_absent_field_is_noted() -> None:
    absent, given = config(), config(num_experts=4)
    assert (absent.assumed("num_experts", 128), given.assumed("num_experts", 128)) == (128, 4)
    assert (absent.notes, given.notes) == (["config names no num_experts; 128 assumed"], [])
    with pytest.raises(ConfigError, match="got null"):
        config(num_experts=None).assumed("num_experts", 128)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0, -1.0, "1", True, None, 10**400])
def test_a_number_is_positive_and_finite(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        config(rope_theta=value).number("rope_theta")
    assert message(error).startswith("$.rope_theta: expected a number above 0, got ")


def test_an_item_of_a_list_is_named_by_its_index() -> None:
    assert config(mlp_only_layers=[0, 3]).integers("mlp_only_layers") == (0, 3)
    with pytest.raises(ConfigError) as error:
        config(mlp_only_layers=[0, "3"]).integers("mlp_only_layers")
    assert message(error) == '$.mlp_only_layers[1]: expected an integer from 0 to 2**48, got "3"'


def test_a_nested_field_is_named_by_its_path() -> None:
    rope = config(rope_scaling={"factor": "8"}).nested("rope_scaling")
    assert rope is not None
    with pytest.raises(ConfigError) as error:
        rope.number("factor")
    assert message(error) == '$.rope_scaling.factor: expected a number above 0, got "8"'


def test_a_family_can_state_its_own_rule() -> None:
    error = config().error("num_key_value_heads", "7 does not divide 32 attention heads")
    assert str(error) == "$.num_key_value_heads: 7 does not divide 32 attention heads"


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("prefix", ["", "torch."])
def test_both_spellings_of_the_dtype_are_read(key: str, prefix: str) -> None:
    for spelling, dtype in {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.items():
        assert config(**{key: prefix + spelling}).dtype() == dtype


@pytest.mark.parametrize("fields", [{}, {"dtype": None}, {"torch_dtype": "auto"}])
def test_a_config_without_a_dtype_is_bf16_with_a_note(fields: dict[str, object]) -> None:
    view = config(**fields)
    assert view.dtype() == "bf16"
    assert view.notes == ["config names no dtype; bf16 assumed"]


def test_what_is_not_modelled_is_refused_or_when_lenient_noted() -> None:
    with pytest.raises(UnsupportedError) as error:
        config(hidden_act="gelu").unmodelled("hidden_act", ("silu",), "only gated SiLU")
    assert message(error) == '$.hidden_act: "gelu" is not modelled (only gated SiLU); "silu" is'
    view = Config({"hidden_act": "gelu"}, name="tiny", lenient=True)
    view.unmodelled("hidden_act", ("silu",), "only gated SiLU")
    assert view.notes == [message(error)]
    config().unmodelled("hidden_act", ("silu",), "absent is fine")


def test_true_is_not_one_but_one_is_one_point_zero() -> None:
    config(key=1).unmodelled("key", (1.0,), "json has one kind of number")
    with pytest.raises(UnsupportedError):
        config(key=True).unmodelled("key", (1.0,), "true is not a number")


def test_a_field_that_nobody_knows_is_an_error_that_names_it() -> None:
    view = config(foo=50.0, _commit_hash="x", asked=2, known=3, bar=1, idle=7)
    view.integer("asked")
    view.ignore("known")
    with pytest.raises(UnsupportedError) as error:
        view.finish({"idle"})
    assert message(error) == (
        "$.foo: 50.0 is not modelled (unknown, so it may act; --lenient leaves it out) (1 more: bar)"
    )
    typo = config(num_key_value_head=8)
    with pytest.raises(
        UnsupportedError, match=r"\$\.num_key_value_head: 8 .*; did you mean num_key_value_heads\?$"
    ):
        typo.finish({"num_key_value_heads"})


def test_an_unknown_field_of_an_object_is_an_error_that_names_its_path() -> None:
    view = config(rope_scaling={"factor": 8.0, "bar": 1})
    rope = view.nested("rope_scaling")
    assert rope is not None
    rope.number("factor")
    with pytest.raises(UnsupportedError) as error:
        view.finish({"bar"})  # what cannot act outside may act inside
    assert message(error).startswith("$.rope_scaling.bar: 1 is not modelled")


def test_lenient_notes_what_nobody_knows_once() -> None:
    view = Config({"foo": 1, "rope_scaling": {"bar": 1}}, name="tiny", lenient=True)
    view.nested("rope_scaling")
    view.finish()
    view.finish()
    assert view.notes == [
        "unknown config field 'foo' ignored",
        "unknown config field 'rope_scaling.bar' ignored",
    ]


@given(st.text(), json_values)
def test_any_unknown_field_is_refused_on_one_line(key: str, value: object) -> None:
    try:
        config(**{key: value}).finish()
    except UnsupportedError as error:
        assert str(error).startswith("$.") and str(error).isprintable()
    else:
        assert key.startswith("_")


def test_a_field_with_neutral_values_is_refused_with_others() -> None:
    off = {"is_encoder_decoder": ((None, False), "an encoder")}
    for value in (None, False):
        config(is_encoder_decoder=value).finish(neutral=off)
    with pytest.raises(UnsupportedError) as error:
        config(is_encoder_decoder=True).finish(neutral=off)
    assert message(error) == "$.is_encoder_decoder: true is not modelled (an encoder); null or false is"


def test_numbers_are_so_many_and_each_is_named() -> None:
    assert config(key=[1, 2.5]).numbers("key", 2) == (1.0, 2.5)
    for value, says in (
        ([1.0], "expected a list of 2 numbers, got a list of 1"),
        (1.0, "expected a list of 2 numbers, got 1.0"),
        (None, "expected a list of 2 numbers, got null"),
    ):
        with pytest.raises(ConfigError) as error:
            config(key=value).numbers("key", 2)
        assert message(error) == f"$.key: {says}"
    with pytest.raises(ConfigError) as error:
        config(key=[1, math.nan]).numbers("key", 2)
    assert message(error) == "$.key[1]: expected a number above 0, got NaN"


def test_zero_stands_for_no_number_only_where_it_may() -> None:
    assert config(key=0).optional_number("key", zero=True) is None
    assert config(key=0.5).optional_number("key") == 0.5
    for value, zero in ((0, False), (False, True), (-1.0, True)):
        with pytest.raises(ConfigError):
            config(key=value).optional_number("key", zero=zero)


def test_two_spellings_of_the_dtype_must_agree() -> None:
    assert config(dtype="float16", torch_dtype="torch.float16").dtype() == "fp16"
    assert config(dtype="auto", torch_dtype="float16").dtype() == "fp16"
    with pytest.raises(ConfigError) as error:
        config(dtype="bfloat16", torch_dtype="float16").dtype()
    assert message(error) == "$.torch_dtype: fp16 contradicts dtype bf16"
