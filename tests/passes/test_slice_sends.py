"""Stages that send slices: the same numbers, each once over the network, and no more time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.ir.tools.text import parse_program, print_program
from tests.commands import runner
from tests.flat import records
from tests.logits import ids, logits, same
from tests.strategies import FUSIONS, configs, cuts, degrees, wide


@pytest.mark.slow
@given(configs(), FUSIONS, st.data(), st.integers(1, 3))
@settings(max_examples=40)
def test_all_ranks_compute_what_one_does(
    config: dict[str, Any], before: str, data: st.DataObject, new: int
) -> None:
    config = wide(config, 12)
    base = llmir.run(llmir.load(config), before)
    how = data.draw(degrees(config))
    assume("ep=0" not in how and ("ep=1," in how or base.active_parameters < base.parameters))
    cut = data.draw(cuts(config["num_hidden_layers"]))
    staged = llmir.run(base, [cut, how])
    program = llmir.run(staged, "slice-sends")
    assert llmir.run(program, "slice-sends") is program
    assert parse_program(print_program(program)) == program
    tokens = ids(program.mesh.degree("dp") * cut.micro_batches, 2 * new, config["vocab_size"])
    assert same(logits(base, tokens, new, new), logits(program, tokens, new, new))


@pytest.mark.parametrize(("tp", "new"), [(2, 1), (8, 1), (8, 2048)])
def test_each_value_is_sent_once(tp: int, new: int) -> None:
    """1/tp of the payload by each rank, and (tp−1)/tp of it once more inside the next stage."""
    whole = llmir.run(llmir.load("llama3.1-70b"), f"stages{{pp=2}},{llmir.pipeline_of()},shard{{tp={tp}}}")
    sliced = llmir.run(whole, "slice-sends")
    payload = 4 * new * 8192 * 2
    at: dict[str, Any] = {"batch": 4, "new": new}
    ops = [
        {op.name: op for op in llmir.analyze(p, "dgx-h100", **records(llmir.analyze, **at)).ops}
        for p in (whole, sliced)
    ]
    assert [each["stage0.send"].comm_bytes for each in ops] == [payload, payload // tp]
    assert ops[1]["stage1.all_gather_recv"].comm_bytes == payload * (tp - 1) // tp
    assert ops[1]["stage0.send"].time_s <= ops[0]["stage0.send"].time_s


def test_what_is_split_already_or_by_no_rank_stays() -> None:
    for how in ("stages{pp=2},shard{tp=4, sp=1}", "stages{pp=2}", "shard{tp=4}", "stages{pp=2},shard{dp=2}"):
        program = llmir.run(llmir.load("llama3.2-1b"), how)
        assert llmir.run(program, "slice-sends") is program


def test_the_command_line_sends_slices_as_engines_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(capsys, tmp_path, monkeypatch)
    said = json.loads(run("analyze", "llama3.2-1b", "--tp", "4", "--pp", "2", "--format", "json").out)
    names = {op["name"] for op in said["phases"]["decode"]["ops"]}
    assert {"stage0.send", "stage1.all_gather_recv"} <= names
