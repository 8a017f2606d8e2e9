"""Each kind of thing from outside, one file each: by --plugin, and installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmir import pipeline_of
from tests.base.test_plugins import installed, restored
from tests.commands import TINY, Ran, Run, environment

PASS = """
def shallow(program):
    '''Says that it is shallow.'''
    return program.replace(name="shallow " + program.name)
"""
REGISTERED_PASS = """
from dataclasses import dataclass
import llmir

@dataclass(frozen=True)
class Renamed(llmir.Pass):
    '''Gives the program another name.'''
    name = "renamed"
    to: str = "other"
    def __call__(self, program):
        return program.replace(name=self.to)
"""
OP = """
from dataclasses import dataclass
import numpy as np
from llmir.ir.core.op import Op

@dataclass(frozen=True)
class PhiGate(Op):
    '''x · Φ(x).'''
    opcode = "phi_gate"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 8
    def evaluate(self, operands, results, at):
        x = operands[0]
        return (x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),)
"""
IR = """program "phi_gate"
graph @main {
  %x = input() : bf16[B, T, 64]
  %y = phi_gate(%x) : bf16[B, T, 64]
  return %y
}
"""
FAMILY = """
from llmir.frontends.config.family import family
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, layers, mlp

@family("WidgetForCausalLM", "widget")
def widget(config):
    '''Llama with biases on q, k and v.'''
    layer = Layer(attention(config, qkv_bias=True), mlp(config))
    return decoder(config, "WidgetForCausalLM", (layer,) * layers(config))
"""
EXPORTER = """
from llmir.backends.request.workload import Workload
from llmir.base.formats import exporter

@exporter("brief", ".brief", of=Workload)
def brief(job):
    '''A line.'''
    return f"{job.program.name} on {job.device.name}: {job.ttft_s * 1e3:.3f} ms"
"""
PICTURE = """
from llmir.backends.request.workload import Workload
from llmir.base.formats import exporter

@exporter("tikz", ".tikz", of=Workload, picture=True)
def tikz(job, level="layer", phase="both"):
    return f"% {job.program.name}, {level}, {phase}"
"""
COST = """
from llmir.backends.cost.registry import cost_model

@cost_model("slow")
class Slow:
    def __init__(self, device):
        self.device = device
    def price(self, row):
        return lambda at: 1.0
"""
COMMAND = """
import click
from llmir.cli.command import command

@command("greet", "Say hello.")
@click.argument("name")
@click.option("--fail", is_flag=True)
def greet(name, fail):
    '''Say hello to NAME.'''
    click.echo(f"hello {name}")
    return 1 if fail else 0
"""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield from restored()


STEP = ("--hw", "h100-sxm", "--prompt", "8", "--generate", "2")


def test_a_function_of_a_file_is_a_pass(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PASS, "utf-8")
    ran = run("opt", "-p", "dce,./mine.py:shallow", "tiny.json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith('program "shallow tiny"')
    assert 'program "shallow tiny"' in run("opt", "-p", "mine.py:shallow", "tiny.json").out
    missing = run("opt", "-p", "mine.py:deep", "tiny.json")
    assert (missing.code, missing.err) == (2, "error: plugin mine.py has no pass or function 'deep'\n")


def test_a_pass_of_a_plugin_has_its_name_and_options(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REGISTERED_PASS, "utf-8")
    for order in (
        ("--plugin", "mine.py", "opt"),
        ("opt", "--plugin", "mine.py"),
        ("opt", "--plugin=mine.py"),
    ):
        ran = run(*order, "-p", "fuse,renamed{to=new}", "tiny.json")
        assert (ran.code, ran.out.splitlines()[0].split(" {")[0]) == (0, 'program "new"'), order
    listed = json.loads(run("passes", "--plugin", "mine.py", "--format", "json").out)["passes"]
    assert next(p for p in listed if p["name"] == "renamed")["summary"] == "Gives the program another name."
    compared = run("diff", "tiny.json", "--pass", "renamed", "--plugin", "mine.py", *STEP, "--format", "json")
    assert json.loads(compared.out)["after"]["pipeline"] == f"{pipeline_of('vllm')},renamed"


def test_an_op_of_a_plugin_is_read_priced_and_listed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OP, "utf-8")
    (tmp_path / "phi_gate.ir").write_text(IR, "utf-8")
    ran = run("analyze", "--plugin", "mine.py", "phi_gate.ir", *STEP, "--cost", "ideal", "--format", "json")
    assert ran.code == 0
    (op,) = json.loads(ran.out)["phases"]["prefill"]["ops"]
    assert (op["name"], op["flops"], op["read_bytes"]) == ("y", 8 * 8 * 64, 2 * 8 * 64)
    assert "x · Φ(x)." in run("ops", "phi_gate", "--plugin", "mine.py").out
    assert "phi_gate" in run("ops").out


def test_a_family_of_a_plugin_reads_configs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAMILY, "utf-8")
    (tmp_path / "widget.json").write_text(json.dumps({**TINY, "architectures": ["WidgetForCausalLM"]}))
    ran = run("opt", "--plugin", "mine.py", "widget.json")
    assert (ran.code, ran.err) == (0, "")
    assert "q_proj.bias" in ran.out
    kind = {k: v for k, v in TINY.items() if k != "architectures"} | {"model_type": "widget"}
    (tmp_path / "kind.json").write_text(json.dumps(kind), "utf-8")
    assert "q_proj.bias" in run("opt", "kind.json").out


def test_a_format_of_a_plugin_is_chosen_by_name_and_by_suffix(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EXPORTER, "utf-8")
    before = run("analyze", "tiny.json", *STEP, "-o", "x.brief")
    assert before.code == 2
    assert "suffix '.brief' is unknown; allowed are .csv, .html, .json, .md, .txt" in before.err
    shown = run("analyze", "--plugin", "mine.py", "tiny.json", *STEP, "--format", "brief")
    assert (shown.code, shown.out.partition(":")[0]) == (0, "tiny on H100-SXM")
    assert run("analyze", "tiny.json", *STEP, "-o", "x.brief").code == 0
    assert (tmp_path / "x.brief").read_text("utf-8") == shown.out.rstrip("\n")


def test_a_picture_of_a_plugin_is_drawn(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PICTURE, "utf-8")
    ran = run("draw", "--plugin", "mine.py", "tiny.json", *STEP, "-o", "x.tikz", "--level", "full")
    assert (ran.code, ran.out) == (0, "x.tikz\n")
    assert (tmp_path / "x.tikz").read_text("utf-8") == "% tiny, full, both"
    assert run("analyze", "tiny.json", *STEP, "-o", "y.tikz").code == 2


def test_a_cost_model_of_a_plugin_prices(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COST, "utf-8")
    ran = run("analyze", "--plugin", "mine.py", "tiny.json", *STEP, "--cost", "slow", "--format", "json")
    data = json.loads(ran.out)
    prefill = data["phases"]["prefill"]
    assert (data["cost_model"], data["ttft_s"]) == ("slow", sum(op["repeat"] for op in prefill["ops"]))
    unknown = run("analyze", "tiny.json", *STEP, "--cost", "slwo")
    assert (
        unknown.err == "error: --cost: expected calibrated, ideal or slow, got 'slwo'; did you mean slow?\n"
    )


def test_a_command_of_a_plugin_runs_and_is_listed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COMMAND, "utf-8")
    unknown = run("greet", "you")
    assert (unknown.code, "unknown command 'greet'" in unknown.err) == (2, True)
    for order in (("--plugin", "mine.py", "greet", "you"), ("greet", "you", "--plugin", "mine.py")):
        assert run(*order) == Ran(0, "hello you\n", "")
    assert run("greet", "you", "--fail").code == 1
    assert re.search(r"^  greet +Say hello\.$", run("--help").out, re.MULTILINE)
    assert "\n  --plugin MODULE|FILE.py" in run("greet", "--help").out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nowhere_at_all\n", "plugin mine.py: module 'nowhere_at_all' is not installed"),
        ("x = 1 / 0\n", "plugin mine.py: ZeroDivisionError: division by zero (line 1)"),
        (
            COMMAND.replace("greet", "analyze"),
            "plugin mine.py: command 'analyze' is defined twice, by llmir.cli.analyze and by /",
        ),
    ],
)
def test_what_is_wrong_in_a_plugin_is_one_line(run: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(text, "utf-8")
    ran = run("passes", "--plugin", "mine.py")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"error: {says}")


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        (
            "def f(program):\n    return {}['x']\n",
            ("opt", "-p", "mine.py:f", "tiny.json"),
            "KeyError: 'x' (line 2)",
        ),
        (
            EXPORTER.replace("job.ttft_s", "job.nothing"),
            ("analyze", "--plugin", "mine.py", "tiny.json", *STEP, "--format", "brief"),
            "AttributeError: 'Workload' object has no attribute 'nothing' (line 8)",
        ),
        (
            COST.replace("return lambda at: 1.0", "open('nowhere')"),
            ("analyze", "--plugin", "mine.py", "tiny.json", *STEP, "--cost", "slow"),
            "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere' (line 9)",
        ),
    ],
)
def test_an_error_while_a_plugin_runs_is_the_plugins(
    run: Run, tmp_path: Path, text: str, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "mine.py").write_text(text, "utf-8")
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"error: plugin {tmp_path / 'mine.py'}: {says}\n"


def llmir(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, with packages installed in `site`."""
    call = [sys.executable, "-m", "llmir", *arguments]
    at = {"env": environment(site), "cwd": Path(__file__).parents[2]}
    return subprocess.run(call, capture_output=True, encoding="utf-8", check=False, **at)


@pytest.mark.slow
def test_installed_plugins_are_found_and_broken_ones_break_nothing(tmp_path: Path) -> None:
    (tmp_path / "widget.json").write_text(json.dumps({**TINY, "architectures": ["WidgetForCausalLM"]}))
    for name, text in (("shiny", REGISTERED_PASS + OP + FAMILY + EXPORTER + COMMAND), ("broken", "1 / 0\n")):
        installed(tmp_path, name, text)
    note = "note: plugin broken: ZeroDivisionError: division by zero (line 1)\n"
    ran = llmir(tmp_path, "opt", str(tmp_path / "widget.json"), "-p", "renamed")
    assert (ran.returncode, ran.stderr) == (0, note)
    assert ran.stdout.startswith('program "other"') and "q_proj.bias" in ran.stdout
    assert llmir(tmp_path, "greet", "you").stdout == "hello you\n"
    help = llmir(tmp_path, "--help")
    assert (help.returncode, help.stderr, "Say hello." in help.stdout) == (0, note, True)
    known = llmir(tmp_path, "opt", "llama3.2-1b", "-p", "fuse")
    assert (known.returncode, known.stderr) == (0, "")  # nothing was looked for


@pytest.mark.slow
def test_doctor_says_which_plugins_there_are(tmp_path: Path) -> None:
    installed(tmp_path, "shiny", PASS)
    installed(tmp_path, "broken", "1 / 0\n")
    ran = llmir(tmp_path, "doctor")
    assert ran.returncode == 0
    found = [line.split(maxsplit=2) for line in ran.stdout.splitlines() if "plugin" in line]
    wrong = "plugin broken: ZeroDivisionError: division by zero (line 1)"
    assert sorted(found) == [["fails", "plugin", wrong], ["ok", "plugin", "shiny 1.0"]]
