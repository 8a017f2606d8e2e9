"""Caches that are moved: their bytes, links to hosts and to others, and rates that were measured."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import llmir
from llmir.backends.cost.channel import PINNED, channel
from llmir.backends.cost.models import model
from llmir.backends.silicon.measure.device_file import device_text
from llmir.backends.silicon.measure.kernels import copy_rate, copy_rate_text
from llmir.backends.silicon.measure.machine import MachineFacts, matmul_point
from llmir.base.errors import HardwareError, InputError
from llmir.cli.main import cli
from llmir.hw import library

LLAMA = llmir.load("llama-2-7b")


def test_a_published_cache_takes_as_long_as_was_measured() -> None:
    """Llama-2-7B, 512 tokens, fp16: 256 MiB at 12.20 GiB/s; 21 ms on an RTX 3090 by Nsight."""
    moved = llmir.kv(LLAMA, "rtx3090", prompt=512, link=f"{12.2 * 1.073741824:.3f}GBps")
    assert moved.bytes == moved.rank_bytes == 268_435_456 == 32 * 2 * 512 * 32 * 128 * 2
    assert moved.time_s == pytest.approx(20.5e-3, abs=0.05e-3)
    assert moved.time_s == pytest.approx(21e-3, rel=0.03)


def test_ranks_send_what_they_have_at_once() -> None:
    one = llmir.kv(LLAMA, "h100", batch=3, prompt=1000)
    four = llmir.kv(llmir.run(LLAMA, "shard{tp=4}"), "h100", batch=3, prompt=1000)
    assert four.bytes == one.bytes == 4 * four.rank_bytes
    assert four.time_s == pytest.approx(one.time_s / 4, rel=1e-2)
    shared = llmir.run(llmir.load("llama3.1-8b"), "shard{tp=16}")  # 8 heads of keys: two ranks have each
    whole = llmir.kv(llmir.load("llama3.1-8b"), "h100", prompt=1000).bytes
    moved = llmir.kv(shared, "h100", prompt=1000)
    assert (moved.ranks, moved.bytes, moved.rank_bytes) == (16, whole, whole // 8)


def test_windows_and_latents_are_counted_as_they_are_kept() -> None:
    latent = llmir.kv(llmir.load("deepseek-v3"), "h200", prompt=1000)
    assert latent.bytes == 61 * 1000 * (512 + 64) * 2
    gemma = llmir.load("gemma-3-27b")
    grown = [llmir.kv(gemma, "h200", prompt=n).bytes for n in (5000, 6000, 7000)]
    full = 62 // 6  # layers that see all: every sixth
    assert grown[2] - grown[1] == grown[1] - grown[0] == full * 1000 * 2 * 16 * 128 * 2


@pytest.mark.parametrize("name", [n for n in library.names() if n not in ("cpu", "tpu-v5p", "tpu-v6e")])
def test_copies_of_the_host_are_within_its_link(name: str) -> None:
    device = library.load(name)
    link = device.host_link[1]
    assert link.host_Bps is None or 0.5 * link.Bps < link.host_Bps < link.Bps
    ideal, real = (channel(model(device, cost), "host").seconds(1e9) for cost in ("ideal", None))
    assert ideal <= real
    assert ideal == pytest.approx(1e9 / link.Bps, rel=1e-3)


def test_a_host_is_copied_as_fast_as_was_measured_or_as_others_were() -> None:
    known, other = channel(model(library.load("h100")), "host"), channel(model(library.load("h200")), "host")
    assert (known.link.Bps, str(known.basis)) == (52.8e9, "calibrated")
    assert other.link.Bps == PINNED * 64e9
    assert other.basis.borrowed
    shares = [library.load(n).host_link[1] for n in ("a100-40", "h100", "gh200")]
    assert sum((x.host_Bps or 0) / x.Bps for x in shares) / 3 == pytest.approx(PINNED, abs=0.015)
    said = channel(model(library.load("h100"), efficiency={"pcie": 0.5}), "host")
    assert (said.link.Bps, str(said.basis)) == (32e9, "efficiency")


def test_links_between_devices_are_priced_as_sends() -> None:
    device = library.load("dgx-a100")
    near, far, cards = (channel(model(device), name) for name in ("nvlink", "network", "pcie"))
    assert near.seconds(1e9) < cards.seconds(1e9) < far.seconds(1e9)  # 300, 32 and 25 GB/s
    for sent in (near, far):
        assert sent.seconds(1e9) >= 1e9 / sent.link.Bps
    assert "torch.distributed" in str(near.basis)


@pytest.mark.parametrize("link", ["host", "nvlink", "pcie", "network"])
def test_a_share_is_taken_if_it_acts_and_refused_if_not(link: str) -> None:
    """Whether the time to move bytes depends on it decides, link by link."""
    device = library.load("dgx-a100")
    whole = channel(model(device, efficiency={"compute": 1.0}), link).seconds(1e9)
    for name in ("compute", "memory", *device.links, "network", "launch"):
        share = 0.5 if name != "launch" else 1e-3
        if channel(model(device, efficiency={name: share}), link).seconds(1e9) != whole:
            assert (
                llmir.kv(
                    LLAMA, "dgx-a100", link=link, estimation=llmir.Estimation(efficiency={name: share})
                ).time_s
                > 0
            )
        else:
            with pytest.raises(InputError, match=f"efficiency: {name} has no effect; set that of "):
                llmir.kv(LLAMA, "dgx-a100", link=link, estimation=llmir.Estimation(efficiency={name: share}))


def test_a_model_without_caches_has_none_to_move() -> None:
    with pytest.raises(InputError, match="DiT-XL-2-256 keeps no caches"):
        llmir.kv(llmir.load("dit-xl-2-256"), "h100")


@pytest.mark.parametrize(
    ("device", "link", "says"),
    [
        (
            "h100",
            "nvlin",
            "link: H100-SXM has the links host, nvlink, pcie, network; "
            "expected one of them or a rate such as 25GBps,5us",
        ),
        ("h100", "network", "H100-SXM has no network that joins several nodes"),
        ("h100", "5x", "link: expected a rate and a latency such as 25GBps,5us, got '5x'"),
        ("l4", "nvlink", "link: L4 has the links host, pcie, network"),
        ("gh200", "nvlink-c2c", "link: GH200 has the links host, nvlink, pcie, network"),
        ("cpu", "host", "CPU has no known link to its host"),
    ],
)
def test_a_link_that_is_not_there_is_refused(device: str, link: str, says: str) -> None:
    with pytest.raises((InputError, HardwareError)) as error:
        llmir.kv(LLAMA, device, link=link)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_says_what_the_api_says() -> None:
    runner = CliRunner()
    asked = ["kv", "llama-2-7b", "--prompt", "512", "--hw", "rtx3090", "--tp", "2", "--link", "13.1GBps"]
    printed = runner.invoke(cli, [*asked, "--format", "json"])
    moved = llmir.kv(llmir.run(LLAMA, "shard{tp=2}"), "rtx3090", prompt=512, link="13.1GBps")
    assert json.loads(printed.output) == moved.to_dict()
    for form in ("table", "md", "html"):
        assert "268,435,456 bytes" in runner.invoke(cli, [*asked, "--format", form]).output
    for prompt, beyond in (("4096", False), ("4097", True)):
        said = runner.invoke(cli, ["kv", "llama-2-7b", "--prompt", prompt]).output
        assert ("exceeds the model's 4096 positions" in " ".join(said.split())) == beyond
    assert runner.invoke(cli, ["kv", "llama-2-7b", "--prompt", "0"]).exit_code == 2
    assert runner.invoke(cli, ["kv", "llama-2-7b", "--link", "sneakers"]).exit_code == 2


class Clock:
    """A GPU whose copies to it go at 50 GB/s and back at 40, by torch's names."""

    gpu, place = True, "cuda"

    def __init__(self) -> None:
        self.copied = 0.0
        self.torch = SimpleNamespace(uint8="uint8", empty=self._empty)

    def _empty(self, size: int, dtype: str, device: str = "", pin_memory: bool = False) -> Any:
        assert bool(device) != pin_memory  # one is there, the other here and pinned

        def copy(other: Any, non_blocking: bool) -> None:
            assert non_blocking
            self.copied = size / (50e9 if device else 40e9)

        return SimpleNamespace(copy_=copy)

    def median(self, call: Any) -> float:
        call()
        return self.copied


def test_a_measured_host_is_in_the_file_of_the_device(tmp_path: Path) -> None:
    machine: Any = Clock()
    rate = copy_rate(machine)
    assert rate == pytest.approx(40e9)
    assert copy_rate(SimpleNamespace(gpu=False)) is None  # type: ignore[arg-type]
    path = tmp_path / "mine.yaml"
    path.write_text(f"extend: h200\n{copy_rate_text(rate, library.load('h200'))}")
    mine = library.load(path)
    assert mine.host_link[1].host_Bps == 40e9
    assert "calibrate --run" in mine.source("links.pcie.host_GBps")
    facts = MachineFacts(("float32",), 5e11, 5e10, 2**24, 2**35, 2**25)
    timed = [(matmul_point("float32", 512, 512, 512, 8), 1e-3)]
    text = device_text("mine", facts, 2, timed, gpu=True, host=rate)
    path.write_text(text.replace("memory_GBps: 0", "memory_GBps: 50"))
    name, link = library.load(path).host_link
    assert (name, link.Bps, link.host_Bps) == ("host", 40e9, 40e9)
    assert copy_rate_text(rate, library.load("cpu")) == ""
