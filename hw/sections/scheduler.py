"""How an engine fills its steps: the section `scheduler` of its file, by the first release of each."""

from __future__ import annotations

from dataclasses import dataclass

from llmir.errors import HardwareError
from llmir.frozen import Record
from llmir.hw import schema, versions
from llmir.hw.schema import Key
from llmir.hw.versions import Engine


@dataclass(frozen=True)
class Scheduler:
    """One that `mixes` reads chunks of prompts beside decodes; else prompts go first, and decodes wait."""

    mixes: bool = True
    source: str = ""


@dataclass(frozen=True, eq=False)
class Schedulers(Record):
    """An engine's, by its first release that has it so, the newest first."""

    known: tuple[tuple[str, Scheduler], ...]

    def of(self, engine: Engine) -> Scheduler:
        """That of the version of an engine that was asked for, or of the last that was measured."""
        wanted = versions.number(engine.release or "".join(engine.versions[-1:]) or self.known[0][0])
        fit = (found for first, found in self.known if versions.number(first) <= wanted)
        return next(fit, self.known[-1][1])


SCHEDULER = {
    "mixes": Key("mixes", schema.flag, required=True),
    "source": Key("source", schema.text, required=True),
}


@versions.section("scheduler")
def scheduler(value: object, where: str) -> Schedulers:
    """The releases of a file; HardwareError for what is none."""
    found = []
    for first, said in schema.mapping(value, where).items():
        try:
            number = versions.number(first)
        except (ValueError, AttributeError):
            wanted = 'the first release of each, such as "0.8"'
            raise HardwareError(f"{where}: expected {wanted}, got {schema.show(first)}") from None
        found.append((number, first, Scheduler(**schema.read(said, f"{where}.{first}", SCHEDULER))))
    return Schedulers(
        tuple((first, each) for _, first, each in sorted(found, key=lambda f: f[0], reverse=True))
    )
