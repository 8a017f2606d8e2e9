"""Where a config comes from: a bundled name, a file, a folder, a mapping, or the local cache of the hub."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from llmir.base import readers
from llmir.base.errors import ConfigError, UnreadableError
from llmir.base.names import plain, suggest
from llmir.base.readers import Budget, read_bytes
from llmir.frontends.models import hub, presets, releases
from llmir.frontends.models.presets import Preset


class ConfigSource(NamedTuple):
    """The fields of a config, the name of the model, and a note on assumptions."""

    fields: Mapping[str, object]
    name: str
    note: str = ""


# The largest config on Hugging Face's hub, with a list of modules that are not quantized, has some 100 kB.
_BUDGET = Budget(bytes=2**22, nodes=200_000, depth=32)


def locate(model: object) -> ConfigSource:
    """Find the config of a bundled name, a path, a mapping, or an object with `.to_dict()`.

    A string is a path if it starts with `.`, `~` or `/`, ends in `.json`, has at least two separators, or has
    one and exists. Any other string is first a bundled name and then a path, so that a folder called
    `llama-3-8b` does not hide the model; write `./llama-3-8b` for the folder. An unknown id is searched in
    the local cache of the Hugging Face hub, and then without the suffixes of a release.
    """
    if isinstance(model, str):
        return _from_string(model)
    if isinstance(model, os.PathLike):
        return _from_path(os.fsdecode(model))
    if callable(convert := getattr(model, "to_dict", None)) and not isinstance(model, type):
        model = convert()
    if not isinstance(model, Mapping):
        raise ConfigError(f"a model is a name, a path, a dict or has .to_dict(); got {show(model)}")
    kind = model.get("model_type")
    return ConfigSource(model, _own_name(model) or (kind if isinstance(kind, str) else ""))


def show(value: object) -> str:
    """A value as JSON writes it, on one short line."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if value is not None and not isinstance(value, bool | int | float | str):
        return f"a Python {type(value).__name__}"
    try:
        return plain(json.dumps(value), limit=60)
    except ValueError:  # Python prints no integer of more than some thousand digits
        return "an integer of thousands of digits"


def _from_string(model: str) -> ConfigSource:
    path, parts = os.path.expanduser(model), model.replace(os.sep, "/").split("/")
    looks_like_path = model.startswith((".", "~", "/")) or model.endswith(".json") or len(parts) > 2
    if looks_like_path or (len(parts) == 2 and os.path.exists(path)):
        return _from_path(path)
    if preset := presets.find(model):
        return ConfigSource(preset.config, preset.name)
    if os.path.exists(path):
        return _from_path(path)
    if file := hub.config(model):
        return ConfigSource(_from_path(str(file)).fields, parts[-1])
    if release := releases.find(model):
        return _from_release(parts[-1], *release)
    near = suggest(model, presets.names())
    hint = "list: llmir models; the path of a config.json works too"
    raise ConfigError(f"unknown model {plain(model, 60)!r}{near} ({hint})")


def _from_release(name: str, preset: Preset, scheme: releases.Scheme | None) -> ConfigSource:
    """A preset with the name of a release; its dtypes are those of the published checkpoint."""
    note = f"{plain(name)} is treated as a release of {preset.name}"
    if scheme is None:
        return ConfigSource(preset.config, plain(name), note)
    how = f"stored as {scheme['quant_method']} as its publisher's others are; its config.json says it exactly"
    return ConfigSource({**preset.config, "quantization_config": scheme}, plain(name), f"{note}, {how}")


def _from_path(path: str) -> ConfigSource:
    file, shown = Path(path), plain(path, limit=1000)
    if os.path.isdir(path):
        file = file / "config.json"
        if not os.path.exists(file):
            raise ConfigError(f"{shown}: no config.json in this folder")
    elif not os.path.exists(path):
        raise ConfigError(f"{shown}: no such file or folder")
    try:
        fields = readers.load_json(read_bytes(file, _BUDGET), _BUDGET)
    except UnreadableError as error:
        raise ConfigError(f"{shown}: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{shown}: expected a JSON object, got {show(fields)}")
    # For a file called config.json use the folder's name; `absolute` resolves ".".
    stem = file.stem if file.stem != "config" else file.absolute().parent.name
    return ConfigSource(fields, _own_name(fields) or stem)


def _own_name(fields: Mapping[str, object]) -> str:
    """The name in the config: the last part of the id or folder from which it was saved."""
    name = fields.get("_name_or_path")
    return plain(name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]) if isinstance(name, str) else ""
