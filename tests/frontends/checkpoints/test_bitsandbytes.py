"""Weights in 4 and 8 bits as bitsandbytes stores them: its bytes, and what stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.base.errors import ConfigError, PassError, UnsupportedError
from tests.frontends.config.test_quantization_config import LLAMA, linears, load
from tests.passes.test_quantize import LLAMA_8B, bytes_of

BNB = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "llm_int8_threshold": 6.0,
}


@pytest.mark.parametrize(
    ("scheme", "form"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
        ({"load_in_4bit": True}, "nf4"),  # bitsandbytes' fp4 has as many
        (BNB, "nf4_dq"),
        ({**BNB, "llm_int8_skip_modules": ["lm_head"]}, "nf4_dq"),
    ],
)
def test_loading_gives_the_bytes_of_the_checkpoint(scheme: dict[str, Any], form: str) -> None:
    program = load(LLAMA, **scheme)
    assert bytes_of(program)[0] == linears(LLAMA_8B, form) + 2 * LLAMA_8B["kept"]
    assert program.notes == ()
    job = llmir.workload(program, "h100", batch=1, prompt=8, generate=2).to_dict()
    assert job["precision"]["activations"] == "bf16"
    assert llmir.parse_program(llmir.print_program(program)) == program


def test_another_table_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r'quant_type: "af4" is not supported; nf4 and fp4 are$'):
        load(LLAMA, load_in_4bit=True, bnb_4bit_quant_type="af4")


@pytest.mark.parametrize("both", [True, False])
def test_bitsandbytes_is_of_eight_bits_or_of_four(both: bool) -> None:
    with pytest.raises(ConfigError, match=f"this or load_in_8bit, got {'both' if both else 'neither'}$"):
        load(LLAMA, quant_method="bitsandbytes", load_in_8bit=both, load_in_4bit=both)
    with pytest.raises(ConfigError, match='load_in_8bit: expected true or false, got "yes"'):
        load(LLAMA, quant_method="bitsandbytes", load_in_8bit="yes")


def test_what_bitsandbytes_leaves_is_listed_and_else_is_lm_head() -> None:
    """A list takes the place of the default."""
    for listed, head in ((None, "bf16"), ([], "bf16"), (["lm_head", "mlp"], "bf16"), (["mlp"], "nf4_dq")):
        program = load(LLAMA, **BNB, llm_int8_skip_modules=listed)
        assert program["main"]["lm_head.weight"].results[0].dtype.scheme == head
        kept = "bf16" if listed and "mlp" in listed else "nf4_dq"
        assert program["layer"]["up_proj.weight"].results[0].dtype.scheme == kept
        assert program["layer"]["q_proj.weight"].results[0].dtype.scheme == "nf4_dq"
    old = load(LLAMA, load_in_4bit=True)
    assert old["layer"]["q_proj.weight"].results[0].dtype.scheme == "bnb_fp4"
    with pytest.raises(PassError, match="no kernel multiplies weights nf4 with activations fp8"):
        llmir.run(llmir.load(LLAMA), "quantize{weights=nf4, activations=fp8}")
