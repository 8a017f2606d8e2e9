"""The tensors of a checkpoint, read from safetensors headers, folders of them, or an index.

Only headers are read, never a weight. The format is defined at github.com/huggingface/safetensors: eight
bytes of header length, little-endian, then JSON with the dtype, shape and offsets of each tensor.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from llmir.base import readers
from llmir.base.dataclass import dataclass
from llmir.base.errors import ConfigError, UnreadableError
from llmir.base.names import plain
from llmir.base.readers import Budget, read_bytes
from llmir.base.values import Figures
from llmir.frontends.config.source import show
from llmir.ir.core.dtype import DTYPES

INDEX = "model.safetensors.index.json"

# DeepSeek-V3's index, of 91,991 tensors, has 9 MB and 184,000 values. A file's header has 13 values per
# tensor, and at most 100 MB by the format's limit.
_BUDGET = Budget(bytes=2**25, nodes=600_000, depth=8)
_MOST_AXES = 32

_DTYPES = {d.stored: d.name for d in DTYPES.values() if d.stored}


@dataclass(frozen=True)
class TensorHeader:
    """A tensor as a header describes it; a dtype that llmir has no name for keeps its name in the file."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Checkpoint(Figures):
    """The tensors by name, with None if only the name is known, and the totals in an index."""

    path: str
    tensors: Mapping[str, TensorHeader | None]
    total_bytes: int | None = None
    total_parameters: int | None = None


def read(path: str) -> Checkpoint:
    """Read a checkpoint from an index, a .safetensors file, a JSON dump of a header, or a folder of these.

    ConfigError for other files.
    """
    shown, where = plain(path, limit=1000), os.path.expanduser(path)
    try:
        if os.path.isdir(where):
            return _folder(Path(where), shown)
        if where.endswith(".safetensors"):
            return Checkpoint(shown, _header(Path(where), shown))
        return _json(Path(where), shown)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{shown}: cannot be read ({reason})") from None


def _folder(folder: Path, shown: str) -> Checkpoint:
    """All shards of a folder, else its index."""
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        if not (folder / INDEX).exists():
            raise ConfigError(f"{shown}: neither a .safetensors file nor {INDEX} in this folder")
        return _json(folder / INDEX, f"{shown}/{INDEX}")
    found: dict[str, TensorHeader | None] = {}
    for shard in shards:
        for name, tensor in _header(shard, plain(str(shard), limit=1000)).items():
            if name in found:
                raise ConfigError(f"{plain(str(shard), limit=1000)}: {show(name)} is in another file too")
            found[name] = tensor
    return Checkpoint(shown, found)


def _header(file: Path, shown: str) -> dict[str, TensorHeader | None]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8:
            raise ConfigError(f"{shown}: {size} bytes are too few for a safetensors file")
        if not 2 <= length <= _BUDGET.bytes:
            raise ConfigError(f"{shown}: a header of {length:,} bytes is not one of a safetensors file")
        if length > size - 8:
            there = f"the header takes {length:,} bytes and {size - 8:,} are there"
            raise ConfigError(f"{shown}: cut off, {there}")
        fields = _parse(stream.read(length), shown)
    return _tensors(fields, shown)


def _json(file: Path, shown: str) -> Checkpoint:
    try:
        fields = _parse(read_bytes(file, _BUDGET), shown)
    except UnreadableError as error:
        raise ConfigError(f"{shown}: {error}") from None
    if "weight_map" not in fields:
        if fields and all(k == "__metadata__" or _is_tensor(v) for k, v in fields.items()):
            return Checkpoint(shown, _tensors(fields, shown))
        raise ConfigError(f"{shown}: no weight_map, so not an index, and not a safetensors header either")
    names = fields["weight_map"]
    if not isinstance(names, dict) or not names:
        raise ConfigError(f"{shown}: $.weight_map: expected an object of tensor names, got {show(names)}")
    return Checkpoint(
        shown,
        dict.fromkeys(names),
        _total(fields, "total_size", shown),
        _total(fields, "total_parameters", shown),
    )


def _total(fields: Mapping[str, object], key: str, shown: str) -> int | None:
    """An integer of the index's metadata; some files write it as a float."""
    metadata = fields.get("metadata") or {}
    value = metadata.get(key) if isinstance(metadata, Mapping) else metadata
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 or value < 0:
        raise ConfigError(f"{shown}: $.metadata.{key}: expected an integer, got {show(value)}")
    return int(value)


def _parse(data: bytes, shown: str) -> dict[str, object]:
    try:
        fields = readers.load_json(data, _BUDGET)
    except UnreadableError as error:
        raise ConfigError(f"{shown}: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{shown}: expected a JSON object, got {show(fields)}")
    return fields


def _is_tensor(value: object) -> bool:
    return isinstance(value, dict) and {"dtype", "shape"} <= value.keys()


def _tensors(fields: Mapping[str, object], shown: str) -> dict[str, TensorHeader | None]:
    named = ((name, value) for name, value in fields.items() if name != "__metadata__")
    return {name: _tensor(value, f"{shown}: {show(name)}") for name, value in named}


def _tensor(value: object, where: str) -> TensorHeader:
    if not isinstance(value, dict) or not _is_tensor(value):
        raise ConfigError(f"{where}: expected dtype, shape and data_offsets, got {show(value)}")
    shape, stated = _counts(value["shape"], f"{where}: shape"), value["dtype"]
    if not isinstance(stated, str):
        raise ConfigError(f"{where}: dtype: expected text, got {show(stated)}")
    name = _DTYPES.get(stated, plain(stated))
    known = math.prod(shape) * DTYPES[name].bits // 8 if name in DTYPES else None
    if "data_offsets" not in value:
        return TensorHeader(shape, name, known or 0)
    offsets = _counts(value["data_offsets"], f"{where}: data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ConfigError(f"{where}: data_offsets: expected a start and an end, got {list(offsets)[:4]}")
    taken = offsets[1] - offsets[0]
    if known not in (None, taken):
        raise ConfigError(f"{where}: {taken:,} bytes are reserved, {stated} {list(shape)} takes {known:,}")
    return TensorHeader(shape, name, taken)


def _counts(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 2**63 for n in value):
        raise ConfigError(f"{where}: expected a list of integers, got {show(value)}")
    if len(value) > _MOST_AXES:
        raise ConfigError(f"{where}: expected at most {_MOST_AXES} numbers, got {len(value):,}")
    return tuple(value)
