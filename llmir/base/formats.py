"""Output formats of results: exporters, registered by the class that they show.

>>> class Greeting(Displayable):
...     name = "world"
>>> @exporter("table", ".txt", of=Greeting)
... def _text(greeting, colour=False):
...     return f"hello {greeting.name}"
>>> print(Greeting())
hello world
>>> suffixes(Greeting)
{'.html': 'html', '.txt': 'table'}
>>> del EXPORTERS["table of Greeting"]
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from .dataclass import dataclass
from .errors import InputError
from .names import suggest
from .registry import Kind

FRAME = "allow-scripts allow-downloads"  # what a page may do in a notebook
Make = TypeVar("Make", bound=Callable[..., str | bytes])


@dataclass(frozen=True)
class Exporter:
    """What `make` gives for a thing of class `of` is its `format`, as files with these suffixes have it."""

    format: str
    of: type
    suffixes: tuple[str, ...]
    make: Callable[..., str | bytes]
    picture: bool = False


EXPORTERS: Kind[Exporter] = Kind(
    "exporter",
    "llmir.ir.tools.text",
    "llmir.backends.export",
    *(f"llmir.backends.export.{package}" for package in ("charts", "dot", "page")),
)


def exporter(format: str, *suffixes: str, of: type, picture: bool = False) -> Callable[[Make], Make]:
    """A decorator: the function makes the text (or bytes) of a thing of that class, or a subclass of it.

    `table` is what `print` and terminals show; it is given `colour`, whether a terminal shows colours. `html`
    is what notebooks show. A picture is given `level` and `phase`, as `llmir.draw` takes them.
    """

    def take(make: Make) -> Make:
        EXPORTERS.add(f"{format} of {of.__name__}", Exporter(format, of, suffixes, make, picture), make)
        return make

    return take


def export(thing: object, format: str, **options: Any) -> str | bytes:
    """`thing` in a format; InputError for one that things like it do not have."""
    of = type(thing)
    own = f"{format} of {of.__name__}"  # which needs no others
    if own in EXPORTERS and EXPORTERS[own].of is of:
        return EXPORTERS[own].make(thing, **options)
    if found := _matching(of, lambda e: e.format == format):
        return found[0].make(thing, **options)
    known = formats(of)
    near = suggest(format, known)
    raise InputError(f"a {of.__name__} has no format {format!r}; it has {', '.join(known)}{near}")


def has_format(format: str, of: type, *, picture: bool = False) -> bool:
    """Whether things of a class have a format; plugins are asked only where llmir has none."""
    return bool(_matching(of, lambda e: e.format == format and e.picture == picture))


def format_of(suffix: str, of: type, *, picture: bool = False, form: str | None = None) -> str | None:
    """The format of files with a suffix, of several `form`; plugins are asked only where llmir has none."""
    found = _matching(of, lambda e: suffix in e.suffixes and e.picture == picture)
    several = [e.format for e in found]
    return form if form in several else several[0] if several else None


def formats(of: type, *, picture: bool = False) -> list[str]:
    """All formats that things of a class have, with those of installed plugins."""
    return list(dict.fromkeys(e.format for e in _of(of, picture)))


def suffixes(of: type, *, picture: bool = False) -> dict[str, str]:
    """The suffixes of files that hold things of a class, and their formats."""
    return {suffix: e.format for e in _of(of, picture) for suffix in e.suffixes}


def _of(of: type, picture: bool) -> list[Exporter]:
    return [e for e in EXPORTERS.values() if e.picture == picture and issubclass(of, e.of)]


def _matching(of: type, fits: Callable[[Exporter], bool]) -> list[Exporter]:
    """Those for a class, the most special first; a page of its own before the part that notebooks show."""
    found = EXPORTERS.matching(lambda e: issubclass(of, e.of) and fits(e))
    return sorted(found, key=lambda e: (-len(e.of.__mro__), e.format == "html"))


class Displayable:
    """Prints as `prints`, one of its formats, and shows in notebooks as its HTML."""

    __slots__ = ()

    prints: ClassVar[str] = "table"

    def __str__(self) -> str:
        return str(export(self, self.prints)).rstrip("\n")

    def _repr_html_(self) -> str:
        return str(export(self, "html"))


class Result(Displayable, ABC):
    """What llmir finds out; its JSON is `to_dict()`."""

    __slots__ = ()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""


class Pairs(Result):
    """A result that is a few labels, and what they say."""

    __slots__ = ()

    @abstractmethod
    def pairs(self) -> list[tuple[str, str]]:
        """Label and words of each line."""


class Page(str):
    """A page of HTML, whole; a notebook shows it in a frame that may run its scripts, and do nothing else.

    >>> Page("<!doctype html><p>a & b")
    <Page of 23 bytes>
    """

    __slots__ = ()

    high = 900  # pixels of the frame

    def __repr__(self) -> str:
        return f"<Page of {len(self.encode()):,} bytes>"

    def _repr_html_(self) -> str:
        own = html.escape(self)
        look = f"width:100%;height:{self.high}px;border:0"
        return f'<iframe sandbox="{FRAME}" title="llmir" style="{look}" srcdoc="{own}"></iframe>'


class PageExport(Displayable):
    """Has a page of its own."""

    __slots__ = ()

    def page(self, *, max_size: int | None = None) -> Page:
        """The page that a browser opens from disk, and a notebook shows; of `max_size` bytes at most (5 MB).

        InputError for a larger one, and for what has none.
        """
        return Page(export(self, "page", max_size=max_size))
