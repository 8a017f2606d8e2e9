"""Launch commands: what an engine must be told so that it starts."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

import llmir
from llmir.cli.main import cli
from tests.flat import records


@pytest.mark.parametrize(
    ("model", "gpus", "short"), [("llama3.1-70b", "2", True), ("llama3.1-8b", "1", False)]
)
def test_a_command_says_the_longest_request_where_caches_hold_less_than_the_model(
    model: str, gpus: str, short: bool
) -> None:
    """vLLM does not start where its caches hold no request of all positions."""
    emitted = CliRunner().invoke(cli, ["plan", model, "--rate", "0.5", "--gpus", gpus, "--emit", "vllm"])
    assert emitted.exit_code == 0, emitted.output
    said = {name: int(value) for name, value in re.findall(r"--([a-z-]+) (\d+)", emitted.output)}
    assert ("max-model-len" in said) == short
    if short:
        split = llmir.run(llmir.load(model), ["shard{tp=2}", llmir.pipeline_of("vllm")])
        limits = {"max_num_seqs": said["max-num-seqs"], "max_batched_tokens": said["max-num-batched-tokens"]}
        held = llmir.workload(
            split, "h100-sxm", **records(llmir.workload, prompt=2048, generate=128, **limits)
        ).pool.kv_tokens
        assert 2048 + 128 <= said["max-model-len"] <= held < said["max-model-len"] + 16
        assert held < 131_072
