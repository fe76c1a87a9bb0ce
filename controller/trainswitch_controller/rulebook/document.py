"""Reading YAML and JSON so that every value knows its line and column."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trainswitch_controller.errors import RuleFileError

MAX_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """Where something stands in a file."""

    path: Path
    line: int
    """Counted from 1."""
    column: int
    """Counted from 1."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is wrong at a place of a file."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class Node:
    """One value of a document, and where it stands."""

    def __init__(self, path: Path, node: yaml.Node) -> None:
        """Wrap a node of PyYAML's."""
        self._path = path
        self._node = node

    @property
    def place(self) -> Place:
        """Where the value begins."""
        return _place(self._path, self._node.start_mark)

    def at(self, offset: int) -> Place:
        """Return the place of a character of a text, as far as it is written as it is read."""
        mark = self._node.start_mark
        written = mark.buffer[mark.pointer : self._node.end_mark.pointer] if mark.buffer else ""
        quote = len(written) > 1 and written[0] in "\"'"
        inside = written[1:-1] if quote else written
        place = self.place
        if "\n" in written or "\\" in inside or "''" in inside:
            return place
        return dataclasses.replace(place, column=place.column + quote + offset)

    @property
    def value(self) -> Any:
        """The value as plain Python: dicts, lists, texts, numbers, booleans and None."""
        loader = yaml.SafeLoader("")
        try:
            return _without_surrogates(loader.construct_document(self._node))
        finally:
            loader.dispose()

    def pairs(self) -> Iterator[tuple[Node, Node]]:
        """Yield the keys and values of a mapping; nothing if it is none."""
        if isinstance(self._node, yaml.MappingNode):
            for key, value in self._node.value:
                yield Node(self._path, key), Node(self._path, value)

    def entries(self) -> Iterator[Node]:
        """Yield the members of a list; nothing if it is none."""
        if isinstance(self._node, yaml.SequenceNode):
            for value in self._node.value:
                yield Node(self._path, value)

    @property
    def is_mapping(self) -> bool:
        """Whether it has keys and values."""
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        """Whether it has members."""
        return isinstance(self._node, yaml.SequenceNode)

    def get(self, key: str) -> Node | None:
        """Return the value of a key of a mapping."""
        return next((value for name, value in self.pairs() if name.value == key), None)


def read(path: Path) -> Node:
    """Return the document in a YAML or JSON file.

    Raises:
        RuleFileError: the file cannot be read, is neither, is empty, or gives a key twice.
    """
    try:
        with path.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise RuleFileError([f"{path}: cannot be read: {error.strerror or error}."]) from error
    except UnicodeDecodeError as error:
        raise RuleFileError([f"{path}: is not UTF-8 text (byte {error.start}): save it as UTF-8."]) from None
    if len(content) > MAX_BYTES:
        raise RuleFileError([f"{path}: is larger than {MAX_BYTES} bytes: this cannot be a rule file."])
    if path.suffix.lower() == ".json" or text.lstrip().startswith("{"):
        text = _json(path, text)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):  # a few of them can stand for a document without end
                where = f"{path}:{event.start_mark.line + 1}" if event.start_mark is not None else f"{path}"
                raise RuleFileError(
                    [f"{where}: '*{event.anchor}' is an alias: write out what it stands for."]
                )
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        root = None if node is None else Node(path, node)
        if root is not None:
            _refuse_repeated(root)
            _ = root.value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{_place(path, mark)}" if mark is not None else f"{path}"
        raise RuleFileError([f"{at}: is not valid YAML: {error.problem or error.context}."]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RuleFileError([f"{path}: is not valid YAML: {' '.join(str(error).split())[:200]}."]) from None
    if root is None:
        raise RuleFileError([f"{path}:1:1: is empty."])
    return root


def _json(path: Path, text: str) -> str:
    """Return JSON as text that is YAML as well, with everything where it was."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if path.suffix.lower() != ".json":
            return text  # YAML may begin with a brace, too
        raise RuleFileError(
            [f"{path}:{error.lineno}:{error.colno}: is not valid JSON: {error.msg}."]
        ) from None
    except RecursionError:
        raise RuleFileError([f"{path}: is nested too deeply."]) from None
    return text.replace("\t", " ")  # YAML indents with spaces only; JSON has no tab inside a text


def _refuse_repeated(node: Node) -> None:
    """Refuse a key that is given twice: the last one would win without a word."""
    seen: dict[object, Place] = {}
    for key, value in node.pairs():
        name = key.value if not (key.is_mapping or key.is_list) else str(key.value)
        if name in seen:
            raise RuleFileError(
                [f"{key.place}: key {name!r} is given twice, first in line {seen[name].line}."]
            )
        seen[name] = key.place
        _refuse_repeated(value)
    for entry in node.entries():
        _refuse_repeated(entry)


def _place(path: Path, mark: yaml.Mark) -> Place:
    return Place(path, mark.line + 1, mark.column + 1)


def _without_surrogates(value: Any) -> Any:
    """Return texts with the pairs that JSON writes for signs beyond the basic plane put together."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(one) for one in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(one) for key, one in value.items()}
    return value
