"""Plugins: what is defined outside is found, once, when its name is asked for; what is wrong is one line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import llmir
from llmir.base import registry
from llmir.base.errors import LlmirError, PassError, PluginError, PluginWarning
from llmir.base.registry import KINDS, Kind
from llmir.ir.core.op import OPS, Op
from llmir.ir.tools.pipeline import PASSES

EPILOGUE = '''
from dataclasses import dataclass
import llmir

@dataclass(frozen=True)
class Renamed(llmir.Pass):
    """Gives the program another name."""
    name = "renamed"
    to: str = "other"
    def __call__(self, program):
        return program.replace(name=self.to)

def epilogue(program):
    return program.replace(name="epilogue")
'''


def restored() -> Iterator[None]:
    """What is defined in between is gone after it."""
    for module in ("frontends.config.family", "backends.cost.registry", "cli.main", "base.formats"):
        import_module(f"llmir.{module}")  # each kind is there
    for kind in list(KINDS.values()):
        kind._read_homes()
    before = {kind.what: (dict(kind._things), dict(kind._makers)) for kind in KINDS.values()}
    loaded = dict(registry._loaded)
    yield
    for kind in list(KINDS.values()):
        if kind.what not in before:
            del KINDS[kind.what]
            continue
        for now, then in zip((kind._things, kind._makers), before[kind.what], strict=True):
            now.clear()
            now.update(then)
    registry._loaded.clear()
    registry._loaded.update(loaded)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield from restored()


def file(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def program() -> llmir.Program:
    b = llmir.Builder()
    b.output(b.silu(b.input("bf16[B, T, 8]", name="x")))
    return llmir.Program("small", {"main": b.graph()})


def test_a_pass_of_a_file_runs_by_its_name_and_by_that_of_its_function(tmp_path: Path) -> None:
    path = file(tmp_path, EPILOGUE)
    assert llmir.run(program(), f"dce,{path}:epilogue").name == "epilogue"
    assert llmir.run(program(), f"{path}:renamed{{to=new}}").name == "new"
    assert llmir.run(program(), f"{path}:Renamed").name == "other"
    assert llmir.run(program(), "renamed{to=now known}").name == "now known"
    assert "renamed" in list(PASSES)


def test_a_file_is_imported_once(tmp_path: Path) -> None:
    path = file(tmp_path, "count = []\ncount.append(1)\n")
    assert (
        registry.load_plugin(path)
        is registry.load_plugin(Path(path))
        is registry.load_plugin(f"{tmp_path}/../{tmp_path.name}/mine.py")
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nowhere_at_all\n", "module 'nowhere_at_all' is not installed"),
        ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero (line 2)"),
        ("def f(:\n", "SyntaxError: "),
        ("raise SystemExit(3)\n", "SystemExit: 3 (line 1)"),
        (
            "from llmir.ir.tools.pipeline import PASSES\n@PASSES.register('fuse')\ndef mine(p): return p\n",
            "pass 'fuse' is defined twice, by llmir.passes.fuse and by ",
        ),
    ],
)
def test_what_is_wrong_in_a_plugin_is_one_line_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(PluginError) as error:
        registry.load_plugin(path)
    assert str(error.value).startswith(f"plugin {path}: {says}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["nowhere.py", "./nowhere", "no_such_module_at_all", "", ".", "a b", 3, None, b"x.py"]
)
def test_what_is_no_plugin_is_one_line(name: object) -> None:
    with pytest.raises(LlmirError) as error:
        registry.load_plugin(name)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_a_name_that_a_plugin_lacks_is_one_line(tmp_path: Path) -> None:
    path = file(tmp_path, EPILOGUE)
    with pytest.raises(PassError, match="has no pass or function 'nothing'"):
        llmir.run(program(), f"{path}:nothing")
    with pytest.raises(PassError, match="is a function and has no options"):
        llmir.run(program(), f"{path}:epilogue{{deep=3}}")


def test_a_name_is_looked_for_where_it_is_likely_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "somewhere"
    home.mkdir()
    for name in ("__init__", "near", "far"):
        (home / f"{name}.py").write_text(
            f"from llmir.base.registry import KINDS\nKINDS['thing'].add('{name}', 1, type('X', (), {{}}))\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    kind: Kind[int] = Kind("thing", "somewhere")
    assert kind["near"] == 1
    assert kind._things.keys() == {"__init__", "near"}
    assert list(kind) == ["__init__", "far", "near"]


def test_the_same_definition_again_is_no_conflict() -> None:
    """As a notebook's cell that is run twice."""
    for flops in (1, 2):

        class Twice(Op):
            opcode = "twice"
            kind = "elementwise"
            rule = "* -> *"
            vector_flops = flops

    assert OPS["twice"] is Twice
    assert OPS["twice"].vector_flops == 2


def test_an_installed_plugin_is_found_when_a_name_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(
        tmp_path,
        "shiny",
        "from llmir.ir.tools.pipeline import PASSES\n@PASSES.register('shine')\n"
        "def shine(p): return p.replace(name='shiny')\n",
    )
    installed(tmp_path, "broken", "import nowhere_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_installed", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert llmir.run(program(), "dce").name == "small"
    with pytest.warns(PluginWarning, match="plugin broken: module 'nowhere_at_all' is not installed"):
        assert llmir.run(program(), "shine").name == "shiny"
    with pytest.raises(PassError, match=r"shards.*did you mean"), warnings.catch_warnings():
        warnings.simplefilter("error")  # what is broken is said once
        llmir.run(program(), "shards")


def installed(site: Path, name: str, text: str) -> None:
    """What pip leaves of a package whose entry point is the module of its name."""
    (site / f"{name}.py").write_text(text, "utf-8")
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (about / "entry_points.txt").write_text(f"[llmir.plugins]\n{name} = {name}\n", "utf-8")
