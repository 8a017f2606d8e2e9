"""The JSON of a request, checked: a model and a device by name or by their fields, and a deployment."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from llmir.api import options
from llmir.api.load import load
from llmir.api.page import AXES, setup
from llmir.base import arguments, readers
from llmir.base.errors import InputError, UnreadableError
from llmir.base.names import plain, suggest
from llmir.base.readers import Budget
from llmir.frontends.models import presets
from llmir.hw import library

if TYPE_CHECKING:
    from llmir.backends.export.page.setups import Setup
    from llmir.hw.device import Device

BUDGET = Budget(bytes=1_000_000, nodes=100_000, depth=32)

# Options of a structure; the page has sliders for the other options.
_OPTIONS = {name: option for name, option in options.AXES.items() if option.record != "Requests"}
_COUNTS = [name for name, option in _OPTIONS.items() if option.is_count]
_RANKS = 1 << 16  # largest number of one kind of ranks
_NAMES = [name for name, option in _OPTIONS.items() if name not in ("hw", "sp", *_COUNTS)]
_FIELDS = ("model", "config", "hw", *_COUNTS, "sp", *_NAMES)
_LONGEST = 100  # characters of a name
_ENGINE = re.compile(r"[a-z0-9-]+(@[0-9]+(\.[0-9]+)*[a-z0-9]*)?")
_COSTS = ("calibrated", "ideal")


class PageRequest(NamedTuple):
    """A model by the name of its preset, or its config; a device and its name; the given axes."""

    preset: str | None
    config: Any
    hw: str
    device: Device
    structure: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the model on the command line."""
        return self.preset or "config.json"

    def setup(self) -> Setup:
        """Build the configuration, or the reason why it is impossible; LlmirError for an invalid model."""
        program = load(self.config if self.preset is None else self.preset)
        made = setup(program, None, {"hw": self.device, **self.structure})
        return replace(made, values={"hw": self.hw, **self.structure})


def read(body: bytes) -> PageRequest:
    """Parse the JSON of a request; UnreadableError for invalid JSON, and other errors of llmir for unknown
    names.
    """
    said = readers.load_json(body, BUDGET)
    if not isinstance(said, dict):
        raise UnreadableError(f"expected a JSON object, got {arguments.show_value(said)}")
    for name in said:
        if name not in _FIELDS:
            near = suggest(name, _FIELDS)
            raise InputError(f"{plain(name, 60)!r} is no field; there are {', '.join(_FIELDS)}{near}")
    if ("model" in said) == ("config" in said):
        raise InputError("expected a model by its name, or a config; one of them")
    structure: dict[str, Any] = {}
    for name in _COUNTS:
        if said.get(name) is not None:
            structure[name] = arguments.integer(name, said[name], _OPTIONS[name].least or 0, _RANKS)
    if said.get("sp") is not None:
        structure["sp"] = int(arguments.flag("sp", said["sp"]))
    for name in _NAMES:
        if said.get(name) is not None:
            structure[name] = _name(name, said[name])
    preset = None if "config" in said else _preset(said["model"])
    config = said.get("config")
    if preset is None and not isinstance(config, dict):
        raise InputError(f"config: expected the object of a config.json, got {arguments.show_value(config)}")
    on = AXES["hw"] if said.get("hw") is None else said["hw"]
    device = _device(on)
    return PageRequest(preset, config, on if isinstance(on, str) else device.name, device, structure)


def _name(name: str, value: object) -> str:
    """A name that cannot be the path of a file."""
    found = arguments.text(name, value)
    if not 0 < len(found) <= _LONGEST or not found.isprintable() or "/" in found or "\\" in found:
        arguments.refuse(name, value, f"a name of up to {_LONGEST} characters")
    if name == "cost":
        arguments.choice(name, found, _COSTS)
    if name == "engine" and not (_ENGINE.fullmatch(found) and found.partition("@")[0] in library.engines()):
        known = ", ".join(library.engines())
        raise InputError(
            f"engine: expected one of {known}, or such as vllm@0.12; got {arguments.show_value(value)}"
        )
    return found


def _preset(value: object) -> str:
    """The name of a bundled model."""
    said = arguments.text("model", value)
    found = presets.find(said[:_LONGEST])
    if found is None:
        near = suggest(said[:_LONGEST], presets.names())
        raise InputError(
            f"model: no bundled model is named {arguments.show_value(said)}{near}; GET /api/models lists them"
        )
    return found.name


def _device(value: object) -> Device:
    """A bundled device or cluster by its name, or one by the keys of its file."""
    if isinstance(value, dict):
        return library.from_keys(value, "hw")
    said, known = arguments.text("hw", value), (*library.names(), *library.clusters())
    if said not in known:
        near = suggest(said[:_LONGEST], known)
        raise InputError(
            f"hw: no bundled device is named {arguments.show_value(said)}{near}; GET /api/hw lists them"
        )
    return library.load(said)
