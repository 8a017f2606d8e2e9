"""What commands print fits a terminal of 80 columns; code (IR, commands to copy) is not wrapped."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import Context
from click.testing import CliRunner

from llmir.cli.main import cli

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


MEASURED = {
    "gemm.csv": """gpu,dtype,m,n,k,latency_us,framework
h100_sxm,bfloat16,64,4096,4096,12,tensorrt-llm-1.3.0rc20
b200_sxm,fp8_block,8192,8192,8192,2000,tensorrt-llm-1.3.0rc20
l40s,bfloat16,64,4096,4096,2,vllm-0.24.0
a-machine-that-nobody-knows-by-this-name,bfloat16,1,1,1,5,vllm-0.24.0
""",
    "e2e.csv": """model,gpu,kind,isl,osl,batch_or_concurrency,ttft_ms,tpot_ms,weight_dtype,framework,tp
meta-llama/Llama-3.1-70B-Instruct,h100_sxm,serving_closed_loop,1024,256,16,90,20,fp8,tensorrt-llm-1.0,4
meta-llama/Llama-3.1-70B-Instruct,a100_sxm,static_batch_latency,1024,256,4,900,50,bf16,hf-transformers,4
""",
}


@pytest.mark.parametrize("by", ["kind,metric,device,framework", "engine,model", "model,size,dtype", "kind"])
def test_errors_of_measured_rows_fit_80_columns(by: str, tmp_path: Path) -> None:
    files = [tmp_path / name for name in MEASURED]
    for path in files:
        path.write_text(MEASURED[path.name])
    result = CliRunner().invoke(cli, ["validate", *map(str, files), "--by", by])
    assert result.exit_code == 0, result.output
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []


@pytest.mark.mostly_slow(19)
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
