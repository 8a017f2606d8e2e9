"""Clusters: the published numbers, files of one's own, which ranks share a node, what the commands say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.compare.explain import explain
from llmir.backends.work.network import check_nodes, rank_topology, split_group
from llmir.base.errors import HardwareError
from llmir.cli.main import cli
from llmir.hw import library, schema
from llmir.hw.link import Link, MachineNode
from llmir.ir.core.mesh import Mesh

FOLDER = Path(library.__file__).parent / "clusters"
# Devices of a node, GB/s of a device in one direction inside a node and between nodes.
PUBLISHED = {
    "dgx-a100": ("a100-80-sxm", 8, 300, 200 / 8),
    "dgx-h100": ("h100-sxm", 8, 450, 400 / 8),
    "hgx-h200": ("h200", 8, 450, 400 / 8),
    "dgx-b200": ("b200", 8, 900, 400 / 8),
    "dgx-b300": ("b300", 8, 900, 800 / 8),
    "mi300x-8": ("mi300x", 8, 448, 400 / 8),
    "mi325x-8": ("mi325x", 8, 448, 400 / 8),
    "mi355x-8": ("mi355x", 8, 537.6, 400 / 8),
    "rtx3090-pcie-8": ("rtx3090", 8, 32, None),
    "rtx4090-pcie-8": ("rtx4090", 8, 32, None),
}


def complaint(call: Callable[[], object]) -> str:
    with pytest.raises(HardwareError) as error:
        call()
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


# --- files ---------------------------------------------------------------------------------------


def test_every_bundled_cluster_is_in_the_published_table() -> None:
    assert library.clusters() == sorted(PUBLISHED) == sorted(p.stem for p in FOLDER.iterdir())


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_are_the_published_ones(name: str) -> None:
    device, devices, inside, between = PUBLISHED[name]
    found, alone = library.cluster(name), library.load(device)
    assert found.node is not None
    assert (found.name, found.memory_bytes, found.matrix_flops) == (
        alone.name,
        alone.memory_bytes,
        alone.matrix_flops,
    )
    assert found.node.devices == devices
    assert found.link(devices)[1].Bps == inside * 1e9
    assert (found.node.network.Bps if found.node.network else None) == (between and between * 1e9)
    assert library.cluster(found.node.name) is found


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_number_has_a_source(name: str) -> None:
    raw = yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8"))
    found = library.load(name)
    for leaf in schema.leaves({"node": raw["node"]}):
        if leaf != "node.name":
            assert not found.source(leaf).endswith(".yaml"), f"{leaf} has no source of its own"
    assert found.source("memory_GBps") == library.load(raw["extend"]).source("memory_GBps")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("DGX H100", "dgx-h100"),
        ("nvidia/DGX_H100", "dgx-h100"),
        ("hgx-h100", "dgx-h100"),
        ("hgx-b200", "dgx-b200"),
        ("dgx-h200", "hgx-h200"),
        ("8x3090-pcie", "rtx3090-pcie-8"),
        ("8x4090", "rtx4090-pcie-8"),
    ],
)
def test_a_cluster_is_found_however_it_is_written(spelling: str, name: str) -> None:
    assert library.load(spelling) is library.cluster(name)


def test_a_cluster_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "extend: rtx4090\nnode:\n  name: my box\n  devices: 4\n  network: {GBps: 1.25, latency_us: 10}\n"
        "sources: {node.devices: counted, node.network.GBps: 10 GbE}\n",
        "utf-8",
    )
    found = library.cluster(path)
    assert found.node == MachineNode("my box", 4, Link(1.25e9, 1e-5))
    assert [found.source(f"node.{key}") for key in ("devices", "network.GBps", "network.latency_us")] == [
        "counted",
        "10 GbE",
        "user file mine.yaml",
    ]
    larger = tmp_path / "larger.yaml"
    larger.write_text(
        "extend: dgx-h100\nnode: {network: {reduces: true}}\nsources: {node.network.reduces: SHARP}\n"
    )
    node = library.cluster(larger).node
    assert node is not None
    assert node.network == Link(50e9, 2.7e-6, direct=True, reduces=True)
    larger.write_text("extend: dgx-h100\nnode: null\n", "utf-8")
    assert "H100-SXM is a device, not a cluster" in complaint(lambda: library.cluster(larger))


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ("8", "node must be a mapping"),
        ("{devices: 8}", "node: missing key name"),
        ("{name: x}", "node: missing key devices"),
        ("{name: x, devices: 0}", "devices must be a number above 0"),
        ("{name: x, devices: 2.5}", "devices must be an integer"),
        ("{name: x, device: 8}", "unknown key 'device'; did you mean devices"),
        ("{name: x, devices: 8, network: {latency_us: 1}}", "node: network: missing key GBps"),
        ("{name: x, devices: 8, network: {GBps: fast}}", "network: GBps must be a number above 0"),
        ("{name: x, devices: 8, network: {GBps: 1, direct: 1}}", "network: direct must be true or false"),
        ("{name: x, devices: 8, network: 50}", "node: network must be a mapping"),
    ],
)
def test_a_wrong_node_is_one_line_that_says_where(tmp_path: Path, node: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extend: h100-sxm\nnode: {node}\n", "utf-8")
    message = complaint(lambda: library.load(path))
    assert message.startswith("mine.yaml: node")
    assert says in message


def test_what_is_no_cluster_is_refused_with_those_that_are() -> None:
    known = ", ".join(library.clusters())
    assert (
        complaint(lambda: library.cluster("h100"))
        == f"H100-SXM is a device, not a cluster; clusters: {known}"
    )
    assert "did you mean dgx-h100" in complaint(lambda: library.cluster("dgx-h10"))


# --- which ranks share a node --------------------------------------------------------------------


@given(st.lists(st.sampled_from([2, 3]), min_size=1, max_size=5), st.data())
def test_a_group_is_the_devices_that_differ_only_along_its_axes(
    sizes: list[int], data: st.DataObject
) -> None:
    mesh = Mesh(tuple((f"a{i}", n) for i, n in enumerate(sizes)))
    over = data.draw(st.sets(st.sampled_from([name for name, _ in mesh.axes])))

    def place(device: int) -> dict[str, int]:
        found = {}
        for name, size in reversed(mesh.axes):
            device, found[name] = divmod(device, size)
        return found

    fixed = [d for d in range(mesh.devices) if all(at == 0 for a, at in place(d).items() if a not in over)]
    assert sorted(mesh.group(over)) == fixed


def test_groups_lie_over_nodes() -> None:
    dgx = library.load("dgx-h100")
    mesh = Mesh((("dp0", 2), ("tp0", 2), ("tp1", 2), ("tp2", 2), ("tp3", 2)))
    assert split_group(dgx, mesh.group(("tp0", "tp1", "tp2", "tp3"))) == (tuple(range(8)), 2)
    assert split_group(dgx, mesh.group(("tp1", "tp2", "tp3"))) == (tuple(range(8)), 1)
    assert split_group(dgx, mesh.group(("dp0",))) == ((0,), 2)
    assert split_group(dgx, mesh.group(("dp0", "tp3"))) == ((0, 1), 2)
    assert split_group(library.load("h100"), tuple(range(32))) == (tuple(range(32)), 1)


@pytest.mark.parametrize(
    ("how", "cluster", "says"),
    [
        ("tp=4", "dgx-h100", None),
        ("dp=6", "dgx-h100", None),  # six of eight, all in one node
        ("dp=12", "dgx-h100", "8 devices a node, which 12 ranks do not fill; 1, 2, 4 and multiples of 8 do"),
        ("tp=8, dp=3", "dgx-h100", None),
        (
            "tp=16",
            "8x4090",
            "RTX-4090-PCIe-8 has 8 devices a node and no network between nodes; 16 do not fit",
        ),
    ],
)
def test_counts_that_do_not_match_nodes(how: str, cluster: str, says: str | None) -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), f"fuse-attention,shard{{{how}}}")
    device = library.cluster(cluster)
    if says is None:
        check_nodes(rank_topology(program), device)
        assert llmir.analyze(program, device, batch=24).time_s > 0
    else:
        assert says in complaint(lambda: llmir.analyze(program, device, batch=24))


@pytest.mark.parametrize(("tp", "link"), [(4, "nvlink"), (8, "network")])
def test_a_stage_of_half_a_node_sends_inside_it(tp: int, link: str) -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), f"stages{{pp=2}},fuse-attention,fuse,shard{{tp={tp}}}")
    report = llmir.analyze(program, "dgx-h100", batch=4, new=100, estimation=llmir.Estimation(cost="ideal"))
    found = explain(report, "send")
    payload = 4 * 100 * 4096 * 2
    assert [(a.what, a.value) for a in found.sends] == [(f"over {link}", payload)]
    on = report.device
    joins = on.links["nvlink"] if link == "nvlink" else on.node.network if on.node else None
    assert joins is not None
    assert found.time_s == pytest.approx(joins.latency_s + payload / joins.Bps, rel=1e-12, abs=0)


def test_stages_that_straddle_nodes_are_refused() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), "stages{pp=4},fuse-attention,shard{dp=3}")
    said = complaint(lambda: llmir.analyze(program, "dgx-h100", batch=3))
    assert "which 3 ranks do not fill; 1, 2, 4 and multiples of 8 do" in said


def test_groups_that_lie_in_one_node_here_and_in_two_there(tmp_path: Path) -> None:
    """Nodes of four hold the innermost four ranks, but of threes only the first and the last."""
    path = tmp_path / "fours.yaml"
    path.write_text("extend: dgx-h100\nnode: {name: four, devices: 4}\n", "utf-8")
    program = llmir.run(llmir.load("llama3.1-8b"), "fuse-attention,shard{tp=4}")
    three = ("a", 3)
    check_nodes(rank_topology(program.replace(mesh=Mesh((three, *program.mesh.axes)))), library.cluster(path))
    turned = program.replace(mesh=Mesh((*program.mesh.axes, three)))
    message = complaint(lambda: check_nodes(rank_topology(turned), library.cluster(path)))
    assert message.startswith(
        "four has 4 devices a node: a group of 4 ranks lies unevenly over them, 2 + 1 + 1"
    )


# --- the commands --------------------------------------------------------------------------------


def run(*arguments: str, code: int = 0) -> str:
    ran = CliRunner().invoke(cli, arguments)
    assert ran.exit_code == code, ran.output
    return ran.stdout if code == 0 else ran.stderr


def test_a_cluster_is_the_same_by_either_option() -> None:
    options = ("analyze", "llama3.1-70b", "--tp", "16", "--format", "json")
    data = json.loads(run(*options, "--cluster", "dgx-h100"))
    assert data == json.loads(run(*options, "--hw", "DGX H100"))
    links = data["hardware"].pop("links")
    assert data["hardware"] == {"name": "H100-SXM", "devices": 16, "cluster": "DGX-H100", "nodes": 2}
    assert links == [
        {"name": "nvlink", "bytes_per_s": 450e9, "latency_s": 6e-7},
        {"name": "network", "bytes_per_s": 50e9, "latency_s": 2.7e-6},
    ]
    assert "16 × H100-SXM in 2 × DGX-H100" in run(*options[:-2], "--cluster", "dgx-h100")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("analyze", "llama3.1-8b", "--cluster", "h100"),
            "is a device, not a cluster; clusters: dgx-a100",
        ),
        (("draw", "llama3.1-8b", "--cluster", "dgx-h101"), "did you mean dgx-h100"),
        (("explain", "llama3.1-8b", "qkv_proj", "--cluster", "no.yaml"), "no such hardware file"),
        (("analyze", "llama3.1-8b", "--hw", "h100", "--cluster", "dgx-h100"), "leave out --hw h100"),
        (("diff", "llama3.1-8b", "--cluster", "l4"), "L4 is a device, not a cluster"),
        (("analyze", "llama3.1-8b", "--tp", "8", "--network", "25GBps"), "one node of 8 devices holds all 8"),
        (("analyze", "llama3.1-70b", "--tp", "16", "--hw", "l40s"), "nothing says what joins more than 8"),
        (("analyze", "llama3.1-8b", "--cluster", ""), "unknown device ''"),
        (("analyze", "llama3.1-8b", "--dp", "12", "--cluster", "dgx-a100"), "multiples of 8 do"),
    ],
)
def test_bad_clusters_are_errors_of_one_line(
    arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LLMIR_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_diff_takes_clusters_on_both_sides() -> None:
    data = json.loads(
        run("diff", "llama3.1-8b", "--cluster", "dgx-a100", "--hw-after", "dgx-h100", "--format", "json")
    )
    assert [data[side]["hardware"] for side in ("before", "after")] == ["A100-80-SXM", "H100-SXM"]


def test_the_list_has_clusters_and_one_in_full() -> None:
    rows = {row["name"]: row for row in json.loads(run("hw", "--format", "json"))}
    assert [n for n, row in rows.items() if row["kind"] == "cluster"] == library.clusters()
    row = rows["dgx-a100"]
    assert (row["device"], row["node_devices"]) == ("A100-80-SXM", 8)
    assert (row["node_bytes_per_s"], row["network_bytes_per_s"]) == (300e9, 25e9)
    assert rows["rtx4090-pcie-8"]["network_bytes_per_s"] is None
    shown = run("hw")
    assert "8 × H200-SXM" in shown
    full = run("hw", "dgx-b200")
    assert "8 in a DGX-B200" in full
    assert "node network bandwidth" in full


def test_more_devices_than_a_box_holds_are_in_the_usual_cluster(tmp_path: Path) -> None:
    """Never over one NVLink; where no cluster of them is known, or as many share a link, that is said."""
    program = llmir.load("llama3.1-70b")

    def step(on: object, how: str = "tp=16") -> llmir.Report:
        return llmir.analyze(
            llmir.run(program, f"fuse,shard{{{how}}}"),
            on,
            batch=24,
            estimation=llmir.Estimation(cost="ideal"),
        )

    assert step("h100").time_s == step("dgx-h100").time_s
    assumed = "are assumed to be in DGX-H100: 8 devices per node and 50 GB/s"
    assert any(assumed in note for note in step("h100").notes)
    inside = ("tp=8", "h100"), ("tp=8, dp=2", "l40s"), ("tp=2, dp=6", "h100"), ("tp=16", "gb200")
    for how, on in (*inside, ("tp=16", "dgx-h100")):
        assert not any("are assumed to be" in note for note in step(on, how).notes)
    says = "16 × L40S: nothing says what joins more than 8; name a cluster, or a network such as"
    assert complaint(lambda: step("l40s")).startswith(says)
    sixes = llmir.run(llmir.load("qwen3-30b-a3b"), "fuse,shard{tp=2, dp=6, ep=4}")
    assert llmir.analyze(sixes, "h100", batch=24).time_s > 0  # groups that do not fill nodes of eight
    path = tmp_path / "capped.yaml"
    path.write_text("extend: h100-sxm\nname: capped\nmatrix_tflops: {bf16: 500}\n")
    assert any("16 × capped are assumed to be in DGX-H100" in note for note in step(path).notes)


def test_a_network_joins_boxes_that_have_none() -> None:
    options = ("analyze", "llama3.1-70b", "--tp", "16", "--format", "json", "--hw")
    data = json.loads(run(*options, "8x4090", "--network", "25GBps,5us"))
    assert data["hardware"]["links"] == [
        {"name": "pcie", "bytes_per_s": 32e9, "latency_s": 1e-6},
        {"name": "network", "bytes_per_s": 25e9, "latency_s": 5e-6},
    ]
    assert library.join("l40s", "1.25 GBps").node == MachineNode("box of 8", 8, Link(1.25e9, direct=True))
    shown = run(*options[:4], "--hw", "l40s", "--network", "50GBps,3us")
    assert "16 × L40S in 2 × box of 8" in shown
    assert "links" in shown
    assert "pcie, 32.0 GB/s each way; network, 50.0 GB/s each way" in shown
    slower = [json.loads(run(*options, "mi300x", "--network", n))["ttft_s"] for n in ("50GBps,3us", "5GBps")]
    assert slower[0] < slower[1]


@pytest.mark.parametrize("network", ["25", "fast", "25GBps,5", "0GBps", "1.2.3GBps", "25GBps,0us", ""])
def test_what_is_no_network_is_refused(network: str) -> None:
    assert complaint(lambda: library.join("h100", network)).startswith("network:")


def test_shares_of_links_act_apart_and_only_where_something_goes_over_them() -> None:
    program = llmir.run(llmir.load("llama3.1-70b"), "fuse-attention,fuse,shard{tp=16}")

    def seconds(**shares: float) -> float:
        return float(
            llmir.analyze(
                program, "dgx-h100", new=4096, estimation=llmir.Estimation(efficiency=shares)
            ).time_s
        )

    whole = seconds(compute=1.0)
    assert seconds(network=0.5) > whole
    assert seconds(nvlink=0.05) > whole
    alone = llmir.run(llmir.load("llama3.1-70b"), "fuse-attention,fuse,shard{tp=8}")
    for on, share in ((alone, "network"), (program, "pcie"), (llmir.load("llama3.1-8b"), "nvlink")):
        with pytest.raises(
            llmir.LlmirError, match=f"{share} has no effect, because .* sends nothing over it"
        ):
            llmir.analyze(on, "dgx-h100", estimation=llmir.Estimation(efficiency={share: 0.5}))
    with pytest.raises(llmir.LlmirError, match="there is no 'infiniband'"):
        llmir.analyze(program, "dgx-h100", estimation=llmir.Estimation(efficiency={"infiniband": 0.5}))
