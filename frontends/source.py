"""Where a model's config comes from: a bundled name, a file, a folder, a dict."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from llmir.errors import ConfigError
from llmir.frontends import presets
from llmir.names import plain, suggest

Source = tuple[Mapping[str, object], str]
"""The fields of a config, and what to call the model."""

_LARGEST_FILE = 2**24


def locate(model: object) -> Source:
    """The config of a bundled name, a path, a mapping, or an object with `.to_dict()`.

    A string is a path when it starts with `.`, `~` or `/`, ends in `.json`, has two separators or more,
    or has one and exists. Any other string is a bundled name first and a path second, so that a folder
    that happens to be called `llama-3-8b` does not hide the model; write `./llama-3-8b` for the folder.
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
    return model, _own_name(model) or (kind if isinstance(kind, str) else "")


def show(value: object) -> str:
    """A value as JSON writes it, on one short line."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if value is not None and not isinstance(value, bool | int | float | str):
        return f"a Python {type(value).__name__}"
    try:
        return plain(json.dumps(value), limit=60)
    except ValueError:  # Python prints no integer of more than some thousand digits
        return "an integer of thousands of digits"


def _from_string(model: str) -> Source:
    path, parts = os.path.expanduser(model), model.replace(os.sep, "/").split("/")
    looks_like_path = model.startswith((".", "~", "/")) or model.endswith(".json") or len(parts) > 2
    if looks_like_path or (len(parts) == 2 and os.path.exists(path)):
        return _from_path(path)
    if preset := presets.find(model):
        return preset.config, preset.name
    if os.path.exists(path):
        return _from_path(path)
    near = suggest(model, presets.names())
    hint = "`llmir models` lists the bundled ones; the path of a config.json works too"
    raise ConfigError(f"unknown model {show(model)}{near} ({hint})")


def _from_path(path: str) -> Source:
    file, shown = Path(path), plain(path, limit=1000)
    if os.path.isdir(path):
        file = file / "config.json"
        if not os.path.exists(file):
            raise ConfigError(f"{shown}: no config.json in this folder")
    elif not os.path.exists(path):
        raise ConfigError(f"{shown}: no such file or folder")
    try:
        with file.open("rb") as stream:
            data = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{shown}: cannot be read ({error.strerror})") from None
    if len(data) > _LARGEST_FILE:
        raise ConfigError(f"{shown}: too large for a config")
    fields = _parse(data, shown)
    # Of a file called config.json the folder says more; `absolute` gives "." a name.
    stem = file.stem if file.stem != "config" else file.absolute().parent.name
    return fields, _own_name(fields) or stem


def _parse(data: bytes, shown: str) -> Mapping[str, object]:
    try:
        text = data.decode("utf-8-sig")
        if not text.strip():
            raise ConfigError(f"{shown}: the file is empty")
        fields = json.loads(text, object_pairs_hook=partial(_object, shown))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{shown}: broken JSON at {where}: {error.msg}") from None
    except (RecursionError, ValueError):  # nesting or digits past what Python parses
        raise ConfigError(f"{shown}: JSON that is too deep or has too long a number") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{shown}: expected a JSON object, got {show(fields)}")
    return fields


def _object(shown: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The fields of an object; a name that is there twice has one value, or is an error."""
    fields: dict[str, object] = {}
    for key, value in pairs:
        if fields.setdefault(key, value) != value:
            both = f"{show(fields[key])} and {show(value)}"
            raise ConfigError(f"{shown}: {show(key)} is there twice, as {both}")
    return fields


def _own_name(fields: Mapping[str, object]) -> str:
    """What the config calls itself: the last part of the id or folder that it was saved from."""
    name = fields.get("_name_or_path")
    return plain(name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]) if isinstance(name, str) else ""
