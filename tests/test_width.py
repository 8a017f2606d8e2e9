"""What commands print fits a terminal of 80 columns; code (IR, commands to copy) is not wrapped."""

from __future__ import annotations

import pytest
from click import Context
from click.testing import CliRunner

from llmir.cli import cli

COMMANDS = (
    "analyze llama3.1-8b",
    "analyze llama3.1-8b --cost ideal --attention eager",
    "analyze qwen3-30b-a3b --tp 4 --ep 4 --sp --batch 8 --weights fp8 --activations fp8 --collectives fp8",
    "analyze llama3.1-405b --cluster dgx-h100 --tp 8 --pp 2 --batch 8 --weights fp8 --activations fp8",
    "diff llama3.1-8b",
    "diff qwen3-30b-a3b --batch 8",
    "diff llama3.1-70b --tp 8 --weights fp8 --kv fp8",
    "diff llama3.1-8b --hw-after tpu-v5p",
    "explain llama3.1-8b qkv_proj",
    "explain qwen3-30b-a3b experts_gate_up --batch 8",
    "explain llama3.1-405b all_reduce_o_proj --cluster dgx-h100 --tp 16",
    "check llama3.1-8b --tp 8",
    "models",
    "hw",
    "hw h100-sxm",
    "hw tpu-v6e",
    "passes",
    "ops",
    "ops rope_append",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_printed_fits_80_columns(command: str) -> None:
    result = CliRunner().invoke(cli, command.split())
    assert result.exit_code in (0, 1), result.output
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []


def test_help_fits_80_columns_with_its_examples() -> None:
    for name in ("", *cli.list_commands(Context(cli))):
        result = CliRunner().invoke(cli, [*name.split(), "--help"])
        assert result.exit_code == 0, result.output
        assert [line for line in result.stdout.splitlines() if len(line) > 80] == [], name
