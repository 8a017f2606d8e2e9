"""One table of element types: every spelling leads to one of them, and its unit to one that a device has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.base.errors import HardwareError, ParseError
from llmir.hw import library
from llmir.ir.core.dtype import DTYPES, WIDER, dtype, parse_dtype, unit_of
from llmir.passes.formats import ALLOWED, format_of

# As huggingface/safetensors names them (README, "Format") and as torch does (torch.dtype).
PUBLISHED = {
    "F64": ("torch.float64", "fp64"),
    "F32": ("torch.float32", "fp32"),
    "F16": ("torch.float16", "fp16"),
    "BF16": ("torch.bfloat16", "bf16"),
    "F8_E4M3": ("torch.float8_e4m3fn", "fp8_e4m3"),
    "F8_E5M2": ("torch.float8_e5m2", "fp8_e5m2"),
    "I64": ("torch.int64", "int64"),
    "I32": ("torch.int32", "int32"),
    "I8": ("torch.int8", "int8"),
}
SCALES = st.sampled_from(
    ("", "_c", "_c16", "_t", "_g32", "_g128z", "_g128zi", "_c16z", "_ci", "_b128x128", "_b1x64")
)


@pytest.mark.parametrize("stored", PUBLISHED)
def test_files_and_torch_spell_the_same_types(stored: str) -> None:
    torch, ours = PUBLISHED[stored]
    assert parse_dtype(stored) == parse_dtype(torch) == parse_dtype(ours) == DTYPES[ours]


@given(st.sampled_from(sorted(d.name for d in DTYPES.values() if d.low and not d.scale_bits)), SCALES)
def test_the_shortest_spelling_leads_back(name: str, scales: str) -> None:
    found = dtype(name + scales)
    assert parse_dtype(found.name) == found
    assert parse_dtype(found.short).scaled == found.scaled
    assert format_of("weights", found.short) == found.scaled
    assert len(found.short) <= len(found.name)


def test_what_is_allowed_is_spelled_shortest() -> None:
    for what, names in ALLOWED.items():
        for name in names:
            assert parse_dtype(name).short == name or what == "weights"
            assert format_of(what, name).plain == parse_dtype(name).plain


@pytest.mark.parametrize("word", ["", "fp9", "bf16_c", "fp8_b0x1", "int4_g", "nvfp4_c", "fp8_e4m3.kn"])
def test_unknown_words_are_refused_by_name(word: str) -> None:
    with pytest.raises(ParseError, match="is unknown; known: fp64"):
        parse_dtype(word)


def test_wider_units_hold_the_values_of_narrower_ones() -> None:
    """No unit takes over from a wider one, and none from itself; all but fp64's and integers' end at fp32."""
    bits = {"fp6": 6, "fp4": 4, "fp8": 8} | {d.unit: d.bits for d in DTYPES.values() if d.unit == d.name}
    mantissa = {"tf32": 10, "fp16": 10, "bf16": 7, "fp32": 23}
    assert {d.unit for d in DTYPES.values()} <= set(WIDER)
    for unit, others in WIDER.items():
        assert all(bits[other] >= bits[unit] for other in others)
        assert all(mantissa.get(o, 99) >= mantissa.get(unit, 0) for o in others)
        assert not others or others[-1] == "fp32"


def test_devices_know_the_units_of_types_that_no_tensor_has() -> None:
    assert [unit_of(w) for w in ("mxfp8", "fp6", "uint8", "int16", "half", "fp8_e4m3_c")] == [
        *("fp8", "fp6", "int8", "int32", "fp16", "fp8")
    ]
    h100 = library.load("h100-sxm")
    assert h100.matrix_peak("mxfp8") == h100.matrix_peak("fp8_e5m2")
    with pytest.raises(HardwareError, match="unknown dtype 'fp99'"):
        h100.matrix_peak("fp99")
