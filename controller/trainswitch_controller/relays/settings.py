"""The file of relays: which gateways there are, and what a request to each of them looks like."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from trainswitch_controller.errors import RelayFileError
from trainswitch_controller.validation import Strict, first_fault

MAX_FILE_BYTES = 100_000
FACTS = ("text", "run", "status", "severity", "alerts")
"""What `$…` can stand for besides a secret; see docs/notifications.md."""

_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
_Texts = dict[str, str]


class RelaySettings(Strict):
    """One gateway; ``$name`` is filled in in `url` and the values of `headers`, `query`, `json`, `form`.

    Address and headers take secrets only.
    """

    url: str
    """``https://…`` or ``http://…``; redirects are not followed."""
    method: Literal["POST", "PUT", "GET"] = "POST"
    headers: _Texts = Field(default={})
    query: _Texts = Field(default={})
    """Parameters of the URL."""
    document: Any = Field(default=None, alias="json")
    """Body in JSON: any value; only its strings are filled in, so nothing has to be escaped."""
    form: _Texts = Field(default={})
    """Body as an HTML form would send it."""
    secrets: dict[_Name, Path] = Field(default={})
    """Name → file with a secret, one line, that only the controller's user can read."""
    max_chars: int = Field(default=300, ge=40, le=4000)
    """Length of ``$text`` at most; a long SMS is charged by parts of 153 characters, or 67 beyond Latin."""
    expect: str | None = Field(default=None, min_length=1, max_length=200)
    """What a good answer contains, for gateways that answer 200 in any case (``"errcode":0``)."""
    timeout_s: float = Field(default=5.0, gt=0.0, le=8.0)
    """For the gateway's answer; Alertmanager itself gives up after 10 s."""

    @field_validator("url")
    @classmethod
    def _an_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("write the gateway's whole address: 'https://host/path'")
        if parts.username or parts.password:
            raise ValueError("a password does not belong into the address: put it into a file under secrets")
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.document is not None and self.form:
            raise ValueError("json and form exclude each other: a request has one body")
        if self.method == "GET" and (self.document is not None or self.form):
            raise ValueError("a GET has no body: put the text into query, or use POST")
        if taken := sorted(self.secrets.keys() & set(FACTS)):
            raise ValueError(f"${taken[0]} is what is sent: give the secret another name")
        # Addresses and headers hold no long text of any alphabet.
        in_head = _names([self.url, *self.headers.values()])
        in_body = _names([*self.query.values(), *self.form.values(), *_strings(self.document)])
        for used, known in ((in_head, {*self.secrets}), (in_body, {*FACTS, *self.secrets})):
            if unknown := sorted(used - known):
                where = "in url and headers" if used is in_head else "here"
                said = ", ".join(sorted(known)) or "a secret"
                raise ValueError(f"${unknown[0]} stands for nothing {where}: use one of {said}")
        used = in_head | in_body
        if "text" not in used:
            raise ValueError("$text is nowhere in query, json or form: the gateway would send nothing")
        if unused := sorted(set(self.secrets) - used):
            raise ValueError(f"the secret {unused[0]!r} is used nowhere: write ${unused[0]} where it belongs")
        return self

    def filled(self, facts: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of ``requests.request`` with `facts` (and secrets) in place of the names."""

        def fill(node: Any) -> Any:
            if isinstance(node, str):
                return string.Template(node).substitute(facts)
            if isinstance(node, dict):
                return {key: fill(value) for key, value in node.items()}
            return [fill(value) for value in node] if isinstance(node, list) else node

        quoted = {name: quote(value, safe="") for name, value in facts.items()}
        arguments: dict[str, Any] = {
            "method": self.method,
            "url": string.Template(self.url).substitute(quoted),
            "headers": fill(self.headers),
            "params": fill(self.query),
        }
        if self.document is not None:
            arguments["json"] = fill(self.document)
        elif self.form:
            arguments["data"] = fill(self.form)
        return arguments


class RelayFile(Strict):
    """A whole file of relays."""

    version: Literal[1]
    relays: dict[_Name, RelaySettings] = Field(min_length=1, max_length=32)


def load_relays(path: Path) -> dict[str, RelaySettings]:
    """Return the relays in `path` by name.

    Raises:
        RelayFileError: the file cannot be read, is not YAML, or a relay in it is not valid.
    """
    try:
        with path.open("rb") as handle:
            content = handle.read(MAX_FILE_BYTES + 1)
        document = yaml.safe_load(content) if len(content) <= MAX_FILE_BYTES else None
    except OSError as error:
        raise RelayFileError(f"relays {path} cannot be read: {error.strerror or error}.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise RelayFileError(
            f"relays {path} is not valid YAML: {' '.join(str(error).split())[:300]}."
        ) from None
    if not isinstance(document, dict):
        raise RelayFileError(
            f"relays {path} holds no mapping of at most {MAX_FILE_BYTES} bytes: begin it with 'version: 1'."
        )
    try:
        return RelayFile.model_validate(document).relays
    except ValidationError as error:
        raise RelayFileError(f"relays {path}: {first_fault(error)}") from None


def _names(values: Iterable[str]) -> set[str]:
    """Return what ``$…`` stands for in `values`."""
    names = set()
    for value in values:
        for match in string.Template.pattern.finditer(value):
            if match["invalid"] is not None:
                raise ValueError(f"{value[:60]!r} holds a lone '$': write '$name', or '$$' for the character")
            names.add(match["named"] or match["braced"] or "")
    return names - {""}  # "$$"


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, (dict, list)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _strings(value)
