"""`llmir doctor`: check the installation."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from llmir.base import registry
from llmir.base.errors import PluginWarning

from . import output
from .command import command, line

PACKAGES = ("networkx", "numpy", "pyyaml", "graphviz", "click", "rich")
GET_DOT = "apt install graphviz, or brew install graphviz; without it .dot files are written"

Finding = tuple[str, str, str]  # status (ok, missing or BROKEN), subject, result


@command("doctor", "Check the installation.")
def doctor() -> int:
    """Check the installation and its results; exit code 1 means that a required part does not work.

    \b
    llmir doctor
    """
    from llmir.backends.export import table

    found = [_python(), _location(), *map(_package, PACKAGES), _dot(), *_plugins()]
    findings = [*found, *map(_checked, (_counts, _prices))]
    output.emit_table(table.pairs(findings))
    broken = [what for state, what, _ in findings if state == "BROKEN"]
    if broken:
        line("error", f"broken: {', '.join(broken)}")
    return 1 if broken else 0


def _python() -> Finding:
    version = platform.python_version()
    return ("ok" if sys.version_info >= (3, 10) else "BROKEN", "Python", f"{version}, {sys.executable}")


def _location() -> Finding:
    from llmir.base.version import __version__

    return ("ok", "llmir", f"{__version__}, {Path(__file__).parents[1]}")


def _package(name: str) -> Finding:
    try:
        return ("ok", name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return ("BROKEN", name, f"not installed: pip install {name}")


def _dot() -> Finding:
    path = shutil.which("dot")
    if path is None:
        return ("missing", "dot", GET_DOT)
    try:
        said = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return ("missing", "dot", f"{path} does not run ({error}); {GET_DOT}")
    return ("ok", "dot", f"{(said.stderr or said.stdout).strip().removeprefix('dot - ')}, {path}")


def _plugins() -> list[Finding]:
    """Installed plugins; it is no failure if one is broken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # the table shows it
        known = registry.installed_plugins()
    return [("fails" if said else "ok", "plugin", said or name) for name, said in known.items()]


def _checked(check: Callable[[], Finding]) -> Finding:
    """Run a check; if it raises an exception, the exception is its result."""
    try:
        return check()
    except Exception as error:  # a broken installation may raise anything
        return ("BROKEN", check.__name__.strip("_"), f"{type(error).__name__}: {error}")


def _counts() -> Finding:
    from llmir.api.load import load
    from llmir.frontends.models.presets import PRESETS

    published = PRESETS["Llama-3.1-8B"].parameters
    counted = load("Llama-3.1-8B").parameters
    state = "ok" if counted == published else "BROKEN"
    return (state, "counts", f"Llama-3.1-8B has {counted:,} parameters, {published:,} are published")


def _prices() -> Finding:
    from llmir.api import estimate
    from llmir.api.options import Estimation
    from llmir.backends.export import units

    seconds = float(
        estimate.analyze(
            "Llama-3.1-8B", "h100-sxm", batch=1, new=1, context=2048, estimation=Estimation(cost="ideal")
        ).time_s
    )
    # One token reads all weights except the embedding: 7.5 billion bf16 weights at 3.35 TB/s take 4.5 ms.
    state = "ok" if 4e-3 < seconds < 6e-3 else "BROKEN"
    return (state, "roofline", f"a token of Llama-3.1-8B on an H100 takes at least {units.time(seconds)}")
