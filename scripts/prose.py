"""Count what makes prose hard to read: dialect phrases, sentences over 30 words, lines over 120 characters.

    python scripts/prose.py FILE…                       the numbers of each file
    python scripts/prose.py --show FILE…                each dialect phrase and long sentence, too
    python scripts/prose.py --sample 100 --seed 1 FILE… 100 sentences drawn at random

Of a Markdown page the prose counts, without code, links and the separators of tables. Of a Python file the
docstrings and comments count, without examples. `scripts/dialect.tsv` lists the phrases: a name, a
regular expression and a plain replacement. The counts are a thermometer: low numbers are necessary, and a
reader who understands each sentence at first reading is the goal.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from pathlib import Path

LONG_SENTENCE = 30
LONG_LINE = 120
SECTIONS = {"Args:", "Returns:", "Raises:", "Yields:", "Attributes:"}


@dataclass(frozen=True)
class Text:
    """A paragraph, list item, heading or table cell, and the line where it starts."""

    line: int
    text: str


@dataclass(frozen=True)
class Counts:
    """Numbers of one file, or of several together."""

    words: int = 0
    sentences: int = 0
    dialect: int = 0
    long_sentences: int = 0
    long_lines: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self.fields(), other.fields(), strict=True)))

    def fields(self) -> tuple[int, ...]:
        """The numbers in order."""
        return self.words, self.sentences, self.dialect, self.long_sentences, self.long_lines

    @property
    def dialect_per_1000_words(self) -> float:
        """Dialect phrases per 1,000 words."""
        return 1000 * self.dialect / max(self.words, 1)

    @property
    def long_share(self) -> float:
        """Share of the sentences with more than `LONG_SENTENCE` words."""
        return self.long_sentences / max(self.sentences, 1)


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a Markdown page outside of code blocks, with their numbers."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("```"):
            fenced = not fenced
            yield number, ""
        elif fenced or line.startswith("    ") or line.strip().startswith("<!--"):
            yield number, ""
        else:
            yield number, line


def texts(page: str) -> Iterator[Text]:
    """Paragraphs, list items, headings and table cells of a Markdown page."""
    block: list[str] = []
    start = 1
    for number, line in (*prose_lines(page), (0, "")):
        stripped = line.strip()
        item = re.match(r"(#+|[-*]|\d+\.) ", stripped)
        if block and (not stripped or item or stripped.startswith("|")):
            yield Text(start, " ".join(block))
            block = []
        if stripped.startswith("|"):
            for cell in stripped.strip("|").split("|"):
                if len(words(cell)) >= 4:
                    yield Text(number, cell.strip())
        elif stripped:
            start = start if block else number
            block.append(stripped[item.end() :] if item else stripped)


def code_texts(source: str) -> Iterator[Text]:
    """Paragraphs of the docstrings and comments of a Python file."""
    yield from docstring_texts(source)
    yield from comment_texts(source)


def docstring_texts(source: str) -> Iterator[Text]:
    """Paragraphs of the docstrings of a Python file, without examples and headings of sections."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and node.body and (string := ast.get_docstring(node, clean=False)):
            start = node.body[0].lineno - 1
            for each in texts(docstring_page(cleandoc(string))):
                yield Text(start + each.line, each.text)


def docstring_page(string: str) -> str:
    """A docstring as a Markdown page: entries of sections are list items, examples are blank lines."""
    lines, example, section = [], False, False
    for line in string.splitlines():
        example = line.strip().startswith(">>>") or (example and bool(line.strip()))
        section = line in SECTIONS or (section and (not line or line.startswith(" ")))
        if example or line in SECTIONS:
            lines.append("")
        elif section:
            entry = re.match(r"    \*{0,2}\w[^:]*: +(?=\S)", line)
            lines.append(f"- {line[entry.end() :]}" if entry else line.strip())
        else:
            lines.append(line)
    return "\n".join(lines)


def comment_texts(source: str) -> Iterator[Text]:
    """The comments of a Python file; comments on consecutive lines of their own are one text."""
    block: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"# *(noqa|type:|mypy:|pragma)", token.string):
            continue
        alone = not token.line[: token.start[1]].strip()
        if block and (token.start[0] != last + 1 or not alone):
            yield Text(start, " ".join(block))
            block = []
        start, last = start if block else token.start[0], token.start[0] if alone else 0
        block.append(token.string.lstrip("#").strip())
    if block:
        yield Text(start, " ".join(block))


def words(text: str) -> list[str]:
    """Words of a text; a code span is one word, and a link counts with its words."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.findall(r"[A-Za-z][A-Za-z'’-]*", re.sub(r"`[^`]*`", "CODE", text))


def sentences(text: str) -> list[str]:
    """Sentences of at least three words."""
    plain = re.sub(r"\]\([^)]*\)", "]", text)
    pieces = re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)[)\"”*_]*\s+(?=[\"“(*_`]*[A-Z0-9`])", plain)
    return [piece for piece in pieces if len(words(piece)) >= 3]


@cache
def phrases() -> list[tuple[str, re.Pattern[str], str]]:
    """Name, regular expression and plain replacement of each dialect phrase."""
    lines = Path(__file__).with_name("dialect.tsv").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    return [(name, re.compile(pattern, re.IGNORECASE), plain) for name, pattern, plain in rows]


def dialect(text: str) -> list[tuple[str, str]]:
    """Dialect phrases of a text, each with its plain replacement."""
    plain = re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", text))
    return [(match[0].strip(), hint) for _, pattern, hint in phrases() for match in pattern.finditer(plain)]


def texts_of(path: Path) -> list[Text]:
    """The texts of a Markdown page or a Python file."""
    return [*(code_texts if path.suffix == ".py" else texts)(path.read_text("utf-8"))]


def count(path: Path, found: Iterable[Text] | None = None) -> Counts:
    """Counts of a file, or of the given texts of it."""
    found = texts_of(path) if found is None else [*found]
    each = [sentence for text in found for sentence in sentences(text.text)]
    lines = [*prose_lines(path.read_text("utf-8"))] if path.suffix != ".py" else []
    return Counts(
        words=sum(len(words(text.text)) for text in found),
        sentences=len(each),
        dialect=sum(len(dialect(text.text)) for text in found),
        long_sentences=sum(len(words(sentence)) > LONG_SENTENCE for sentence in each),
        long_lines=sum(len(line) > LONG_LINE and not line.startswith("|") for _, line in lines),
    )


def main() -> None:
    """Print the counts of the given files, or a sample of their sentences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--show", action="store_true", help="print each dialect phrase and long sentence")
    parser.add_argument("--sample", type=int, metavar="N", help="print N sentences drawn at random instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of --sample")
    options = parser.parse_args()
    if options.sample:
        pool = [
            (page, text.line, sentence)
            for page in options.pages
            for text in texts_of(page)
            for sentence in sentences(text.text)
        ]
        for page, line, sentence in random.Random(options.seed).sample(pool, options.sample):
            print(f"{page}:{line}: {sentence}")
        return
    total = Counts()
    print("dialect/1000 words   long sentences   long lines")
    for page in options.pages:
        counts = count(page)
        total += counts
        print(
            f"{counts.dialect_per_1000_words:18.1f} {counts.long_share:16.1%} {counts.long_lines:12} {page}"
        )
        if options.show:
            for text in texts_of(page):
                for phrase, plain in dialect(text.text):
                    print(f"  line {text.line}: {phrase!r}: {plain}")
                for sentence in sentences(text.text):
                    if len(words(sentence)) > LONG_SENTENCE:
                        print(f"  line {text.line}: {len(words(sentence))} words: {sentence}")
    print(f"{total.dialect_per_1000_words:18.1f} {total.long_share:16.1%} {total.long_lines:12} all")


if __name__ == "__main__":
    main()
