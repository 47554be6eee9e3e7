"""YAML as recipes need it: a value keeps the line it stands on, and nothing is read as what it doesn't look like.

A subset of YAML 1.2: `no` and `on` are words, `1:30:00` is a text, `0123` is refused, and so are duplicate keys, tags,
merge keys and more than a few aliases.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import yaml

from rlsweep.errors import RecipeError

Scalar = str | int | float | bool | None

MOST_ALIASES = 16
MOST_LEVELS = 16
MOST_DIGITS = 18

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9][0-9.]*([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Place:
    """Where something is stated: a line of a file, or (without a line) an option of the command line."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"

    def error(self, path: str, message: str) -> RecipeError:
        """The error to raise for what stands here; `path` may be empty."""
        return RecipeError(f"{self}: {path}: {message}" if path else f"{self}: {message}")


@dataclass(frozen=True)
class Node:
    """A value and where it stands; `plain` is the text of a scalar that stands without quotes."""

    value: "Scalar | dict[str, Node] | list[Node]"
    place: Place
    plain: str | None = None

    @property
    def kind(self) -> str:
        """What a person would call the value."""
        for kind, name in ((dict, "a map"), (list, "a list"), (bool, "true or false"), (int, "a whole number")):
            if isinstance(self.value, kind):
                return name
        return "null" if self.value is None else "a number" if isinstance(self.value, float) else "a text"

    def __str__(self) -> str:
        if isinstance(self.value, dict | list):
            return self.kind
        return self.plain or "null" if self.plain is not None else repr(self.value)


def read_file(path: Path) -> Node:
    """The one document of a file. Raises RecipeError: not there, not UTF-8, not valid YAML, empty."""
    source = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"{source}: {(error.strerror or 'cannot be read').lower()}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Place(source, line).error("", "not UTF-8; save the file as UTF-8") from None
    return parse(text, source)


def parse(text: str, source: str) -> Node:
    """The one document of a text. Raises RecipeError, naming `source` and the line."""
    return _parse(text, lambda line: Place(source, line))


def parse_value(text: str, place: Place) -> Node:
    """One value as typed in a shell: a map or list in flow form, a quoted text, or the plain text itself."""
    text = text.strip()
    if text[:1] in ("{", "[", '"', "'"):
        return _parse(text, lambda line: place)
    return Node(plain_scalar(text, place), place, text)


def _parse(text: str, at: Callable[[int], Place]) -> Node:
    try:
        return _Reader(text, at).document()
    except yaml.reader.ReaderError as error:
        place = at(text[: error.position].count("\n") + 1)
        raise place.error("", f"not valid YAML: a character that it doesn't allow, {error.character!r}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        hint = " (a tab: indent with spaces)" if "\\t" in str(error.problem) else ""
        place = at(mark.line + 1 if mark else 1)
        raise place.error("", f"not valid YAML: {error.problem or error.context}{hint}") from None


def plain_scalar(text: str, place: Place) -> Scalar:
    """What an unquoted scalar means. Raises RecipeError where a number could be read in two ways."""
    if text in _WORDS:
        return _WORDS[text]
    if _LEADING_ZERO.fullmatch(text):
        raise place.error("", f"{text} starts with a zero: write the number without it, or a text in quotes")
    if _INTEGER.fullmatch(text):
        if len(text.lstrip("+-")) > MOST_DIGITS:
            raise place.error("", f"{text} is too long for a whole number; a text goes in quotes")
        return int(text)
    if _NUMBER.fullmatch(text):
        if not isfinite(float(text)):
            raise place.error("", f"{text} is too large for a number; a text goes in quotes")
        return float(text)
    return text


class _Reader:
    """Builds nodes from PyYAML's events, which know lines and explicit tags; its own constructors know neither."""

    def __init__(self, text: str, at: Callable[[int], Place]):
        self.at = at
        self.events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self.anchors: dict[str, Node] = {}
        self.aliases = 0

    def document(self) -> Node:
        """The only document. An empty one is refused."""
        next(self.events)
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            raise self.at(1).error("", "the file is empty")
        node = self.node(next(self.events), 0)
        next(self.events)
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.place(event).error("", "a second document; one file holds one")
        if node.value is None:
            raise self.at(1).error("", "the file is empty")
        return node

    def place(self, event: yaml.Event) -> Place:
        assert event.start_mark is not None
        return self.at(event.start_mark.line + 1)

    def node(self, event: yaml.Event, level: int) -> Node:
        place = self.place(event)
        if level > MOST_LEVELS:
            raise place.error("", f"nested deeper than {MOST_LEVELS} levels")
        if isinstance(event, yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MOST_ALIASES:
                raise place.error("", f"more than {MOST_ALIASES} aliases (*name)")
            if event.anchor not in self.anchors:
                raise place.error("", f"alias *{event.anchor} names nothing that stands before it")
            return self.anchors[event.anchor]
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            raise place.error("", f"tag {event.tag}: tags are not allowed")
        if isinstance(event, yaml.ScalarEvent):
            plain = event.value if event.style is None else None
            node = Node(event.value if plain is None else plain_scalar(plain, place), place, plain)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Node(list(self.items(level)), place)
        else:
            node = Node(self.entries(level), place)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def items(self, level: int) -> Iterator[Node]:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self.node(event, level + 1)

    def entries(self, level: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.node(event, level + 1)
            if key.plain == "<<":
                raise key.place.error("", "merge keys (<<) are not allowed; use `extends`")
            if not isinstance(key.value, str):
                raise key.place.error("", f"a key must be a word, not {key.kind} ({key})")
            if key.value in entries:
                first = entries[key.value].place.line
                raise key.place.error(key.value, f"stated twice; first on line {first}")
            # A value is said to stand where its key stands: for a map in block form its own start is a line later.
            entries[key.value] = replace(self.node(next(self.events), level + 1), place=key.place)
        return entries
