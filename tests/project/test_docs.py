"""What the pages state of the code is what the code says; their examples run as doctests."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import llmir.ir.ops  # noqa: F401  (registers them)
from llmir.backends.cost.transfer import calibration_source
from llmir.backends.kernels.base import KERNELS, parameters
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.cli.main import cli
from llmir.frontends.config.family import FAMILIES
from llmir.hw import library
from llmir.hw.schema import DEVICE, LINK, NODE
from llmir.ir.core.op import OPS

ROOT = Path(__file__).parents[2]


def table(page: str, header: str) -> dict[str, list[str]]:
    """The cells of a table in a page, by the `code` of the first cell."""
    lines = (ROOT / "docs" / page).read_text("utf-8").partition(header)[2].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {name: cells for cells in rows for name in re.findall(r"`([^`]+)`", cells[0])}


def test_links_inside_the_project_lead_to_files() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("backends/*.md")]
    links = {
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([\w./-]+)[)#]", page.read_text("utf-8"))
        if "://" not in link
    }
    assert len(links) > 50
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_the_table_of_costs_has_each_op_as_its_class_states_it() -> None:
    ops = {name: op for name, op in OPS.items() if op.__module__.startswith("llmir.ir.ops.")}
    rows = table("costs.md", "<!-- ops:")
    assert rows.keys() == ops.keys()
    for name, (_, kind, equation, flops, *_) in rows.items():
        op = ops[name]
        assert (kind, equation) == (op.kind, f"`{op.rule}`" if op.rule else "its own"), name
        if op.vector_flops:
            assert flops == f"{op.vector_flops} per element", name


def test_the_table_of_families_has_each_one() -> None:
    assert table("families.md", "| class |").keys() == {*FAMILIES}


def test_the_table_of_kernel_parameters_has_each_parameter() -> None:
    rows = table("calibration.md", "<!-- kernels:")
    kernels = {kind for kind in KERNELS.values() if not issubclass(kind, EngineCpu)}
    assert rows.keys() == {p.name for kernel in kernels for p in parameters(kernel)}


def test_the_table_of_hardware_keys_has_each_key() -> None:
    rows = table("hardware.md", "| key |")
    assert rows.keys() == {*DEVICE, "sources", "extend"}
    assert all(f"`{key}" in rows["links"][2] for key in LINK)
    assert all(f"`{key}" in rows["node"][2] for key in NODE)


def test_the_table_of_borrowed_kernels_is_what_devices_borrow() -> None:
    page = (ROOT / "docs" / "hardware.md").read_text("utf-8").split("| kernels of |")[1].split("\n\n")[0]
    found = {}
    for row in page.splitlines()[2:]:
        _, source, users, _ = row.split("|")
        names = re.findall(r"`([^`]+)`", users)
        if stated := re.search(r"`(.+)` \((.+), (.+)\)", source):
            measured = library.load(stated[1])
            assert stated.groups() == (stated[1], measured.isa, measured.memory_kind)
            names.append(stated[1])
        found |= dict.fromkeys(names, measured if stated else None)
    assert found == {name: calibration_source(library.load(name)) for name in library.names()}


@pytest.mark.parametrize("page", ["README.md", "docs/commands.md", "docs/tutorial.md"])
def test_what_a_page_shows_is_what_the_commands_print(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"```console\n\$ llmir (.*)\n([^`]*)```", (ROOT / page).read_text("utf-8"))
    assert shown
    for command, output in shown:
        result = CliRunner().invoke(cli, shlex.split(command))
        assert result.exit_code == (1 if "exit 1" in output else 0), command
        printed = [line.rstrip() for line in result.output.splitlines() if line.strip()]
        printed = [
            line for line in printed if not re.match("note: .* takes about ", line)
        ]  # on slow machines
        lines = [line for line in output.splitlines() if line.strip() and line != "# exit 1"]
        at = 0  # the printed line that the page shows next; `...` stands for any number of lines
        for line, before in zip(lines, ["", *lines], strict=False):
            if line != "...":
                assert line in printed[at:], (command, line)
                found = printed.index(line, at)
                assert found == at or before == "...", (command, line)
                at = found + 1
        assert at == len(printed) or lines[-1] == "...", command


def test_commands_in_pages_have_the_options_that_they_name() -> None:
    context, wrong, number = click.Context(cli, help_option_names=["-h", "--help"]), [], 0
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        text = page.read_text("utf-8")
        for command in re.findall(
            r"`(llmir [a-z-]+ [^`]*-[^`]*)`|^    (llmir [a-z-]+ .*-.*)$", text, re.MULTILINE
        ):
            words = shlex.split("".join(command).replace("…", ""), comments=True)[1:]
            found = cli.get_command(context, words[0])
            if found is None or words[-1].startswith("--") or "|" in "".join(command):
                continue  # a placeholder, or an option without its value
            number += 1
            try:
                found.make_parser(context).parse_args(words[1:])
            except click.UsageError as error:
                wrong.append(f"{page.name}: {' '.join(words)}: {error.format_message()}")
    assert number > 80
    assert wrong == []


def test_each_command_and_option_has_its_help() -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    missing = [name for name, command in commands.items() if not command or not command.help]
    options = [
        (n, each) for n, c in commands.items() if c for each in c.params if isinstance(each, click.Option)
    ]
    assert len(options) > 300
    assert missing + [f"{n} {each.opts}" for n, each in options if not each.help and not each.hidden] == []


# Commands, the pages and the heading with their JSON keys (no heading: whole pages), and the keys of objects
# that contain data by name, such as settings.
MODEL = "qwen3-0.6b --hw l4"
JSON_COMMANDS = {
    "analyze": (
        [f"analyze {MODEL} --price l4=1", f"analyze {MODEL} --concurrency 2 --prompt 16 --generate 4"],
        ("json.md", ""),
        set(),
    ),
    "analyze-variants": (
        [f"analyze {MODEL} --draft-tokens 2 --acceptance 0.6", f"analyze {MODEL} --beams 2 --tp 2"],
        ("json.md", ""),
        set(),
    ),
    "diff": (
        [f"diff {MODEL} --concurrency 2 --prompt 16 --generate 4"],
        ("json-diff.md json.md", ""),
        {"basis"},
    ),
    "max": ([f"max {MODEL} --max-tpot 30ms"], ("json-commands.md", "max"), set()),
    "explain": (
        [
            f"explain {MODEL} qkv_proj",
            f"explain {MODEL} flash_attention --tp 2",
            f"explain {MODEL} engine_cpu",
        ],
        ("json-commands.md", "explain"),
        {"binding", "given"},
    ),
    "explain-collective": (
        ["explain llama3.1-8b all_reduce_o_proj --hw h100-sxm --tp 16 --network 25GBps,5us"],
        ("json-commands.md", "explain"),
        {"binding", "given"},
    ),
    "sweep": ([f"sweep {MODEL} --tp 1,3 --batch 1,2"], ("json-commands.md", "sweep"), {"axes"}),
    "serve-sim": (
        [
            f"serve-sim {MODEL} --rate 2 --requests 20 --max-ttft 1s",
            f"serve-sim {MODEL} --rate 2 --requests 20 --replicas 2",
            f"serve-sim {MODEL} --rate 2 --requests 20 --prefill-replicas 1 --decode-replicas 1 --link pcie",
            f"serve-sim {MODEL} --rate 2 --requests 20 --replications 2",
        ],
        ("json-commands.md", "serve-sim"),
        set(),
    ),
    "plan": (
        [f"plan {MODEL} --rate 1 --requests 100 --gpus 1 --prompt 64 --generate 8 --max-tpot 30ms"],
        ("json-commands.md", "plan"),
        {"changed_settings", "missed"},
    ),
    "validate": (["validate gemm.csv memory.csv"], ("json-commands.md", "validate"), set()),
}
TABLES = {
    "gemm.csv": """gpu,framework,dtype,m,n,k,latency_us
h100_sxm,cublas,bfloat16,8192,8192,8192,1600
h100_sxm,cublas,bfloat16,16,8192,8192,1
h9000,cublas,bfloat16,16,8192,8192,60
""",
    "memory.csv": """model,gpu,weight_dtype,kv_dtype,metric,batch,tokens_in,value_gib,value_gb
llama-2-7b,rtx4090,fp16,fp16,peak,1,512,14,
""",
}


def keys(value: Any, data: set[str]) -> Iterator[str]:
    """The keys of a JSON document, except names in objects of data, and names that are not identifiers."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from [key] * bool(re.fullmatch("[a-z][a-z0-9_]*", key))
        yield from keys(list(inner.values()) if key in data and isinstance(inner, dict) else inner, data)
    for each in value if isinstance(value, list) else ():
        yield from keys(each, data)


@pytest.mark.parametrize("case", JSON_COMMANDS)
def test_each_json_key_is_documented(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in TABLES.items():
        Path(name).write_text(text, "utf-8")
    lines, (pages, heading), data = JSON_COMMANDS[case]
    sections = [
        each for page in pages.split() for each in (ROOT / "docs" / page).read_text("utf-8").split("\n## ")
    ]
    known = {word for text in sections[:1] for word in re.findall(r"`(\w+)`", text)}
    known |= {
        w for t in sections if t.startswith(f"{heading}\n" * bool(heading)) for w in re.findall(r"`(\w+)`", t)
    }
    for line in lines:
        result = CliRunner().invoke(cli, [*shlex.split(line), "--format", "json"])
        assert result.exit_code in (0, 1), result.output
        found = {*keys(json.loads(result.stdout), data)}
        assert len(found) > 10
        assert sorted(found - known) == [], line
