"""Names and text for users: normalized spelling, suggestions, checkpoint places, ranges in errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from .errors import VerifyError


def normalize(name: str) -> str:
    """The canonical form of a name, for comparisons of spellings.

    >>> normalize("meta-llama/Llama-3.1-8B") == normalize("llama3.1_8b")
    True
    """
    whose, _, own = name.rpartition("/")
    last = own if any(c.isalpha() for c in own) else f"{whose.rpartition('/')[-1]}{own}"  # DiT-XL/2
    return "".join(c for c in last.lower() if c.isalnum() or c == ".")


_STORED = re.compile(
    r"(.+?)[-_.]((?:gptq|awq|gguf|fp8|nvfp4|fp4|int4|int8|quantized\.w\d+a\d+)(?:[-_]\w+)*)", re.IGNORECASE
)


def split_format(name: str) -> tuple[str, str]:
    """Split a release name from its suffix for the storage format of weights; "" without a suffix.

    >>> split_format("TheBloke/Llama-2-7B-GPTQ"), split_format("Qwen/Qwen3-32B")
    (('TheBloke/Llama-2-7B', 'GPTQ'), ('Qwen/Qwen3-32B', ''))
    >>> split_format("Qwen3-32B-FP8-dynamic")
    ('Qwen3-32B', 'FP8-dynamic')
    """
    found = _STORED.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


class CheckpointPlace(NamedTuple):
    """The place of a weight in a checkpoint: a tensor, and `piece`, its index in the tensor, unless the
    weight is the whole tensor.

    The tensor consists of `blocks` equal blocks of rows, and each block contains the pieces one below
    another. `turned` means stored as [in, out]. `flat` means that one matrix stores the matrices of all
    experts.
    """

    tensor: str
    piece: int | None = None
    blocks: int = 1
    turned: bool = False
    flat: bool = False


_PLACE = re.compile(r"(.*?)(?:\[(\d+)(?:/(\d+))?\])?(\^T)?(\^F)?", re.DOTALL)


def checkpoint_place(param: str) -> CheckpointPlace:
    """Parse the place from the name of a parameter.

    >>> checkpoint_place("h.0.c_attn.weight[1]^T")
    CheckpointPlace(tensor='h.0.c_attn.weight', piece=1, blocks=1, turned=True, flat=False)
    >>> checkpoint_place("h.0.query_key_value.weight[1/32]").blocks
    32
    >>> checkpoint_place("h.0.dense.weight").piece is None
    True
    """
    tensor, piece, blocks, *marks = _PLACE.fullmatch(param).groups()  # type: ignore[union-attr]
    return CheckpointPlace(tensor, None if piece is None else int(piece), int(blocks or 1), *map(bool, marks))


_LAYER = re.compile(r"\{layer(?::([\d.]+))?\}")


def is_layered(param: str) -> bool:
    """Whether the name stands for one tensor per layer."""
    return "{layer" in param


def layer_name(param: str, layer: int | str) -> str:
    """The name of a layer's tensor, with the layer's number, or with its position in the list that the name
    contains.

    >>> layer_name("h.{layer}.weight", 12), layer_name("shared.adapters.{layer:6.12.18}.weight", 12)
    ('h.12.weight', 'shared.adapters.1.weight')
    """

    def number(found: re.Match[str]) -> str:
        if found[1] is None or not isinstance(layer, int):
            return str(layer)
        listed = found[1].split(".")
        if str(layer) not in listed:
            raise VerifyError(f"{param}: layer {layer} is not one of {', '.join(listed)}")
        return str(listed.index(str(layer)))

    return _LAYER.sub(number, param)


def suggest(name: str, known: Iterable[str], *, limit: int = 3) -> str:
    """`; did you mean A, B?` for the known names nearest to `name`, or an empty string."""
    import difflib  # this import takes longer than most of llmir, and mistakes are rare

    spellings = {normalize(k): k for k in known}
    near = difflib.get_close_matches(normalize(name), spellings, n=limit, cutoff=0.55)
    return f"; did you mean {', '.join(spellings[n] for n in near)}?" if near else ""


def unknown(what: str, name: str, known: Iterable[str], where: str = "") -> str:
    """The error for a name that is not in `known`: similar names come first, then all names.

    `where` is a command that prints the list, if the list is long.

    >>> unknown("pass", "fuze", ["fuse", "dce"], "llmir passes")
    "unknown pass 'fuze'; did you mean fuse? (list: llmir passes)"
    >>> unknown("dtype", "fp9", ["bf16", "fp8"]), unknown("dtype", "xyz", ["bf16", "fp8"])
    ("unknown dtype 'fp9'; did you mean fp8? (list: bf16, fp8)", "unknown dtype 'xyz' (list: bf16, fp8)")
    """
    names = list(known)
    return f"unknown {what} {plain(name)!r}{suggest(name, names)} (list: {where or ', '.join(names)})"


def plain(text: str, limit: int = 100) -> str:
    """`text` on one line: without control characters, and cut to `limit`.

    >>> plain("my\\nmodel\\x1b[31m"), plain("a long name", limit=5)
    ('mymodel[31m', 'a lo…')
    """
    kept = "".join(c for c in text if c.isprintable()).strip()
    return kept if len(kept) <= limit else f"{kept[: limit - 1]}…"


def bounded(what: str, least: float | None, most: float | None = None, *, above: bool = False) -> str:
    """Describe `what` with its range, as errors print it; `above` excludes the lower end.

    An end of 1e300 means no limit.

    >>> bounded("an integer", 1, 2**48), bounded("a number", 1e-6, 1e9)
    ('an integer from 1 to 2**48', 'a number from 0.000001 to 1,000,000,000')
    >>> bounded("a number", 0), bounded("a number", 0, above=True), bounded("a share", 0, 1, above=True)
    ('a number from 0 up', 'a number above 0', 'a share above 0 up to 1')
    """
    most = None if most is not None and most >= 1e300 else most
    if least is None or least <= -1e300:
        return what if most is None else f"{what} up to {_digits(most)}"
    begin = f"{what} {'above' if above else 'from'} {_digits(least)}"
    if most is None:
        return begin if above else f"{begin} up"
    return f"{begin} {'up to' if above else 'to'} {_digits(most)}"


def _digits(number: float) -> str:
    """A number without an exponent."""
    from decimal import Decimal  # imported here, like difflib above, because mistakes are rare

    return (
        f"2**{int(number).bit_length() - 1}"
        if number in (2**40, 2**48)
        else f"{Decimal(f'{number:.12g}').normalize():,f}"
    )


def spans(numbers: Iterable[int], most: int) -> str:
    """Format increasing numbers, with ranges for consecutive ones, up to `most` items.

    >>> spans([3, 4, 5, 9, 11], 2), spans([7], 2)
    ('3–5, 9, …', '7')
    """
    ends: list[list[int]] = []
    for n in numbers:
        if ends and n == ends[-1][1] + 1:
            ends[-1][1] = n
        else:
            ends.append([n, n])
    words = [f"{first}–{last}" if last > first else f"{first}" for first, last in ends]
    return ", ".join([*words[:most], *(["…"] if len(words) > most else [])])
