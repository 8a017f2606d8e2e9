"""What the pages state of the code is what the code says; their examples run as doctests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

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
        printed = [line.rstrip() for line in result.output.splitlines()]
        expected = [line for line in output.splitlines() if line not in ("...", "# exit 1")]
        assert [line for line in expected if line not in printed] == [], command


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
