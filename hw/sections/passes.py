"""Which passes make of a model what an engine runs: the section `passes` of its file, by first release."""

from __future__ import annotations

from dataclasses import dataclass

from llmir.errors import HardwareError
from llmir.frozen import Record
from llmir.hw import schema, versions
from llmir.hw.schema import Key
from llmir.hw.versions import Engine


@dataclass(frozen=True)
class Passes:
    """What it does to every model by default, as a pipeline spells it."""

    pipeline: str
    source: str = ""


@dataclass(frozen=True, eq=False)
class Pipelines(Record):
    """An engine's, by its first release that has it so, the newest first."""

    known: tuple[tuple[str, Passes], ...]

    def of(self, engine: Engine) -> Passes:
        """That of the version of an engine that was asked for, or of the last that was measured."""
        wanted = versions.number(engine.release or "".join(engine.versions[-1:]) or self.known[0][0])
        fit = (found for first, found in self.known if versions.number(first) <= wanted)
        return next(fit, self.known[-1][1])


PASSES = {
    "pipeline": Key("pipeline", schema.text, required=True),
    "source": Key("source", schema.text, required=True),
}


@versions.section("passes")
def passes(value: object, where: str) -> Pipelines:
    """The releases of a file; HardwareError for what is none."""
    found = []
    for first, said in schema.mapping(value, where).items():
        try:
            number = versions.number(first)
        except (ValueError, AttributeError):
            wanted = 'the first release of each, such as "0.8"'
            raise HardwareError(f"{where}: expected {wanted}, got {schema.show(first)}") from None
        found.append((number, first, Passes(**schema.read(said, f"{where}.{first}", PASSES))))
    newest = sorted(found, key=lambda each: each[0], reverse=True)
    return Pipelines(tuple((first, each) for _, first, each in newest))
