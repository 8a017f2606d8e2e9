"""The registry: ops, passes, families, cost models, exporters and commands, by kind and name.

A definition registers itself in its own file. The lookup of an unknown name imports the home packages of its
kind, first the module named like it or like its first word, and then installed plugins. Modules that no
lookup needs are not imported. A plugin is a module, or a file, that registers such definitions.

Lookups are thread-safe. A definition registers itself before its module is complete, so a lookup waits for
the thread that imports the module. No other lock is taken while the import system has its locks.

>>> from llmir.ir.tools.pipeline import PASSES
>>> PASSES["dce"].__name__, "inline" in PASSES
('DeadCode', False)
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, TypeVar

from .errors import LlmirError, PluginError, PluginWarning
from .names import plain

GROUP = "llmir.plugins"  # the entry points of installed plugins: any name, and a module

T = TypeVar("T")
D = TypeVar("D")

KINDS: dict[str, Kind[Any]] = {}


class Kind(MutableMapping[str, T]):
    """The definitions of one kind, by name; iterating over them imports all of them.

    `what` is the noun for one definition in messages. `homes` are the packages or modules with llmir's own
    definitions. `index` is an optional generated module with `MODULES`, a map from names to modules.
    """

    def __init__(self, what: str, *homes: str, index: str = "") -> None:
        self.what, self.homes, self.index = what, homes, index
        self._things: dict[str, T] = {}
        self._makers: dict[str, tuple[str, str]] = {}  # name -> module and function or class
        self._complete: set[str] = set()  # names whose modules are imported
        self._read = False  # whether all homes are imported
        KINDS[what] = self

    def add(self, name: str, thing: T, maker: Any) -> None:
        """Register the definition of a class or function; PluginError if its name is taken."""
        by = maker.__module__, maker.__qualname__
        if not by[0].startswith(("llmir.", *self.homes)):
            self._read_homes()  # llmir's own names are registered first
        other = self._makers.get(name, by) if name in self._things else by
        if other != by:
            raise PluginError(f"{self.what} {name!r} is defined twice, by {other[0]} and by {by[0]}")
        self._things[name], self._makers[name] = thing, by

    def register(self, *names: str) -> Callable[[D], D]:
        """A decorator that registers a class or function, under each of the names."""

        def take(thing: D) -> D:
            for name in names:
                self.add(name, thing, thing)  # type: ignore[arg-type]
            return thing

        return take

    def matching(self, fits: Callable[[T], bool]) -> list[T]:
        """The matching definitions among llmir's and the loaded ones; installed plugins are searched if none
        match.
        """
        found = [thing for thing in self.own().values() if fits(thing)]
        if not found and installed_plugins():
            found = [thing for thing in self.own().values() if fits(thing)]
        return found

    def _places(self, name: str = "") -> Iterator[None]:
        """Yield after the import of each place that may define a name: the index, the homes, and plugins."""
        yield
        if not self._read:
            if self.index and (module := importlib.import_module(self.index).MODULES.get(name)):
                importlib.import_module(module)
                yield
            first = re.match(
                "[A-Z][a-z]+|[a-z]+(?= )", name
            )  # the first word, as in LlamaForCausalLM or `table of Report`
            for module in (name.replace("-", "_"), first[0].lower() if first else ""):
                if module.isidentifier():
                    for home in self.homes:
                        _import_if_there(f"{home}.{module}")
                    yield
            self._read_homes()
            yield
        if installed_plugins():
            yield

    def own(self) -> Mapping[str, T]:
        """All definitions of llmir and of loaded plugins; installed plugins are not searched."""
        self._read_homes()
        return dict(self._things)

    def _read_homes(self) -> None:
        if not self._read:
            for home in self.homes:
                import_all(home)
            self._read = True

    def _defined(self, name: str) -> bool:
        """Whether a name is registered; wait until the module that defines it is imported."""
        if name in self._complete:
            return True
        if name not in self._things:
            return False
        maker, _ = self._makers.get(name, ("", ""))
        if _is_importing(maker):
            importlib.import_module(maker)  # returns at once in the thread that imports the module
        if not _is_importing(maker):
            self._complete.add(name)
        return True

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return name in self._complete or any(self._defined(name) for _ in self._places(name))

    def __getitem__(self, name: str) -> T:
        if name in self:
            return self._things[name]
        raise KeyError(name)

    def __setitem__(self, name: str, thing: T) -> None:
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        self._complete.discard(name)
        del self._things[name]

    def __iter__(self) -> Iterator[str]:
        for _ in self._places():
            pass
        return iter(sorted(self._things))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _is_importing(module: str) -> bool:
    """Whether a thread has begun to import a module and has not finished."""
    return getattr(getattr(sys.modules.get(module), "__spec__", None), "_initializing", False)


def _import_if_there(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise


def import_all(home: str) -> None:
    """Import a package and its direct modules, but no subpackages."""
    from pkgutil import iter_modules

    package = importlib.import_module(home)
    for module in iter_modules(getattr(package, "__path__", ())):
        importlib.import_module(f"{home}.{module.name}")


_loaded: dict[str, ModuleType] = {}  # by the name in messages


def load_plugin(plugin: str | os.PathLike[str]) -> ModuleType:
    """Import a plugin once and register its definitions.

    Args:
        plugin: The name of a module, or the path of a `.py` file.

    Returns:
        The module.

    Raises:
        PluginError: The plugin does not exist or raises an error, which the message contains.

    >>> load_plugin("json").__name__
    'json'
    """
    name = os.fspath(plugin) if isinstance(plugin, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name:
        got = f"a {type(plugin).__name__}" if name is None else plain(str(name))
        raise PluginError(f"a plugin must be the name of a module or a .py file, got {got!r}")
    shown = plain(name)
    if name.endswith(".py") or os.sep in name:
        path = os.path.realpath(os.path.expanduser(name))
        if not os.path.isfile(path) or not path.endswith(".py"):
            raise PluginError(f"plugin {shown}: no such .py file")
        return _guarded(shown, path, lambda: _import_file(path))
    return _load_module(shown, name)


def loaded_plugins() -> tuple[str, ...]:
    """The modules and files of plugins that are loaded, for another process to load them."""
    return tuple(_loaded)


def files() -> tuple[str, ...]:
    """The files of the plugins that are loaded, with all modules inside them."""
    found = set()
    for name, module in [*sys.modules.items()]:
        inside = any(f"{name}.".startswith(f"{plugin}.") for plugin in _loaded)
        if inside and (path := getattr(module, "__file__", None)):
            found.add(str(path))
    return tuple(sorted(found))


def _load_module(name: str, module: str) -> ModuleType:
    return _guarded(name, module, lambda: importlib.import_module(module))


def _guarded(name: str, module: str, bring: Callable[[], ModuleType]) -> ModuleType:
    if module in _loaded:
        return _loaded[module]
    try:
        _loaded[module] = bring()
    except LlmirError as error:
        raise PluginError(f"plugin {name}: {error}") from error
    except ModuleNotFoundError as error:
        if error.name != module:
            raise PluginError(f"plugin {name}: module {error.name!r} is not installed") from error
        raise PluginError(f"plugin {name}: no such module; the name of a file must end in .py") from None
    except (Exception, SystemExit) as error:  # the code of a plugin may raise anything
        raise PluginError(f"plugin {name}: {_error_text(error, module)}") from error
    return _loaded[module]


def _import_file(path: str) -> ModuleType:
    """Import a file as a module whose name contains its path, so that no other module has this name."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(path, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path]
        raise
    return module


_installed: dict[str, str] | None = None  # name and version -> error; None before the first search
_searching = threading.local()  # `active` while this thread imports installed plugins


def installed_plugins() -> dict[str, str]:
    """Import the installed plugins on first use, and return the version or the error of each.

    A plugin with an error gives one `PluginWarning`; the others still work.
    """
    global _installed  # noqa: PLW0603  (one search for a process)
    if _installed is None and not getattr(_searching, "active", False):
        from importlib.metadata import entry_points

        found = {}
        _searching.active = True
        try:
            for point in entry_points(group=GROUP):
                version = point.dist.version if point.dist else ""
                message = ""
                try:
                    _load_module(point.name, point.module)
                except PluginError as error:
                    message = str(error)
                    warnings.warn(message, PluginWarning, stacklevel=2)
                found[f"{point.name} {version}".strip()] = message
        finally:
            _searching.active = False
        _installed = found
    return _installed or {}


def blame(error: BaseException) -> str | None:
    """The plugin in which an error was raised, with its message; None if no plugin was running."""
    trace, found = error.__traceback__, None
    while trace:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if plugin := next((name for name in _loaded if f"{module}.".startswith(f"{name}.")), None):
            found = f"plugin {plugin}: {_error_text(error, plugin)}"
        trace = trace.tb_next
    return found


def _error_text(error: BaseException, module: str) -> str:
    """`KeyError: 'x' (line 12)`, the line being the last one in the plugin."""
    trace, line = error.__traceback__, 0
    while trace:
        if str(trace.tb_frame.f_globals.get("__name__")) == module:
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" (line {line})" if line else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
