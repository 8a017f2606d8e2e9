"""Options of a server that commands and functions share: chunked prefill, sequences and memory of a step."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

import llmir
from llmir.api.page import setups
from llmir.backends.request.portable import PortableRequests
from llmir.base.errors import InputError
from llmir.cli.command import COMMANDS
from llmir.hw import library
from llmir.hw.engine_sections import Scheduler
from tests.commands import Run

MODEL, HW = "llama3.1-8b", "h100-sxm"
TRTLLM = llmir.Estimation(engine="trtllm")
SERVERS = {
    "--activations": ("analyze", "max", "serve-sim", "plan", "sweep", "report"),
    "--kv": ("analyze", "max", "serve-sim", "plan", "sweep", "report"),
    "--chunked-prefill": ("analyze", "max", "serve-sim"),
    "--max-num-seqs": ("analyze", "max", "serve-sim", "sweep"),
    "--memory-utilization": ("analyze", "max", "serve-sim", "sweep", "report"),
}


@pytest.mark.parametrize(("option", "command"), [(o, c) for o, names in SERVERS.items() for c in names])
def test_commands_that_estimate_a_server_have_its_options(option: str, command: str) -> None:
    assert any(option in each.opts for each in COMMANDS[command].params if isinstance(each, click.Option))


@pytest.mark.parametrize(
    ("engine", "chunked"),
    [("vllm", True), ("vllm@0.7", False), ("sglang", True), ("trtllm", False), ("trtllm@0.17", False)],
)
def test_engines_split_prompts_as_their_defaults_do(engine: str, chunked: bool) -> None:
    """TensorRT-LLM: enable_chunked_prefill of llmapi/llm_args.py is off; V0 of vLLM reads whole prompts."""
    runs = library.engine(engine)
    scheduler = runs.section(Scheduler)
    assert scheduler is not None and scheduler.chunked == chunked


@pytest.mark.parametrize("prompt", [8192, 8193])
@pytest.mark.parametrize("chunked", [None, True, False])
def test_a_prompt_longer_than_a_step_needs_chunks(prompt: int, chunked: bool | None) -> None:
    memory = llmir.Memory(chunked_prefill=chunked)
    how: dict[str, Any] = {"prompt": prompt, "memory": memory, "estimation": TRTLLM}
    if prompt > 8192 and chunked is False:
        with pytest.raises(InputError, match="8,193 tokens to read, and a step has 8,192"):
            llmir.workload(MODEL, HW, **how)
        return
    notes = llmir.workload(MODEL, HW, **how).notes
    refused = [note for note in notes if "refuses prompts of more than 8,192 tokens" in note]
    assert bool(refused) == (prompt > 8192 and chunked is None)


@pytest.mark.parametrize(("prompt", "fits"), [(8192, True), (8193, False)])
def test_a_prompt_is_refused_by_analyze_as_by_a_simulation(prompt: int, fits: bool) -> None:
    """Without chunks both take the longest prompt of a step, and no longer one."""
    how: dict[str, Any] = {"memory": llmir.Memory(chunked_prefill=False), "estimation": TRTLLM}
    traffic = llmir.Traffic(rate=1, prompt=prompt, generate=4, requests=5)
    if fits:
        assert len(llmir.simulate(MODEL, HW, traffic, **how).ttft_s) == 5
        assert llmir.workload(MODEL, HW, prompt=prompt, generate=4, **how).fits
        return
    with pytest.raises(InputError):
        llmir.simulate(MODEL, HW, traffic, **how)
    with pytest.raises(InputError):
        llmir.workload(MODEL, HW, prompt=prompt, generate=4, **how)


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
@pytest.mark.parametrize("chunked", [True, False])
def test_the_largest_context_ends_where_a_step_does(engine: str, chunked: bool) -> None:
    how = {"memory": llmir.Memory(chunked_prefill=chunked), "estimation": llmir.Estimation(engine=engine)}
    found = llmir.largest(MODEL, HW, generate=100, **how).context
    assert found.most == (131_072 if chunked else 8192 + 100)
    assert found.binding.name == ("max_model_len" if chunked else "max_batched_tokens")


def test_the_default_of_the_largest_context_is_that_of_the_engine() -> None:
    for estimation, chunked in ((TRTLLM, False), (None, True)):
        default = llmir.largest(MODEL, HW, estimation=estimation)
        stated = llmir.largest(MODEL, HW, estimation=estimation, memory=llmir.Memory(chunked_prefill=chunked))
        assert default.context.most == stated.context.most


@pytest.mark.parametrize("how", [{"memory_utilization": 0.5}, {"max_num_seqs": 16}, {}])
def test_a_sweep_has_room_for_what_a_workload_has(how: dict[str, Any]) -> None:
    memory, batches = llmir.Memory(**how), (1, 16, 17, 64, 100, 500)
    rows = [*llmir.sweep(MODEL, {"batch": batches, "context": 2000}, memory=memory).rows()]
    for row, batch in zip(rows, batches, strict=True):
        job = llmir.workload(MODEL, HW, batch=batch, prompt=2000, generate=2, memory=memory)
        assert row["fits"] == job.fits, batch


def test_a_sweep_refuses_limits_of_whole_requests() -> None:
    with pytest.raises(InputError, match="max_model_len: has no effect on one step"):
        llmir.sweep(MODEL, {"batch": 1}, memory=llmir.Memory(max_model_len=5000))


def test_a_page_has_the_share_of_memory_that_is_asked_for() -> None:
    (found,) = setups("llama3.2-1b", memory_utilization=0.7)
    assert found.program is not None and found.model is not None
    limits = PortableRequests(found.program, found.model, memory_utilization=0.7).limits
    assert limits["share"] == found.memory_utilization == 0.7
    pages = {llmir.page("llama3.2-1b", memory_utilization=share) for share in (None, 0.7)}
    assert len(pages) == 2


def test_commands_take_the_options(run: Run) -> None:
    refused = run("analyze", MODEL, "--prompt", "10000", "--no-chunked-prefill")
    assert refused.code == 2
    assert refused.err == (
        "error: --prompt: 10,000 tokens to read, and a step has 8,192; "
        "set --chunked-prefill or --max-batched-tokens\n"
    )
    ran = run("sweep", MODEL, "--batch", "1,32", "--max-num-seqs", "16", "--format", "json")
    assert [row["fits"] for row in json.loads(ran.out)["rows"]] == [True, False]
