"""The signals that an onset is looked for in, as ``signals.yml`` or a file of the user's gives them."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from trainswitch_controller.errors import PromqlError, SignalFileError
from trainswitch_controller.policy import Duration, PositiveDuration
from trainswitch_controller.promql import parse
from trainswitch_controller.validation import Strict, first_fault

SHIPPED = Path(__file__).with_name("signals.yml")
SYMPTOM = "symptom"
"""Kind of the signals that date an onset and are no suspects themselves."""
MAX_POINTS = 2000
"""Of one series in one answer."""
MAX_SIGNALS = 60
_MAX_FILE_BYTES = 1_000_000

Harms = Literal["weights", "pace"]
"""What a signal outside its band says of the run: its weights are not to be trusted, or it is only slow."""


def _template(value: object) -> object:
    if isinstance(value, str) and not string.Template(value).is_valid():
        raise ValueError("a dollar sign is followed by a name, or is written $$")
    return value


Template = Annotated[str, BeforeValidator(_template)]


class Signal(Strict):
    """One signal: what to ask Prometheus, which band its series keep to, and what it says outside of it."""

    kind: str = Field(pattern=r"^[a-z][a-z_]{0,39}$")
    harms: Harms
    expr: Template
    """PromQL, with ``$run`` and ``$limit``."""
    above: float | None = None
    below: float | None = None
    above_usual: float | None = Field(default=None, gt=1.0)
    below_usual: float | None = Field(default=None, gt=0.0, lt=1.0)
    usual_of: PositiveDuration | None = None
    """Seconds before each moment whose median is usual; None: that of the window's earlier half."""
    steady: bool = False
    """It has no noise, so it left its course where it began to go to where its band ended."""
    head_start: Duration = 0.0
    """Seconds by which it may be seen later than what it caused, and still is named first."""
    reach: PositiveDuration = 60.0
    """Seconds before the alert at which it must have been outside at the latest."""
    bridge: Duration = 30.0
    """Seconds that it may be within its band, or have no sample, in between."""
    alone: bool = False
    """A suspect only where nothing else that harms the weights left its band before it."""
    name: Template
    """Who is suspected, from the series' labels."""
    detail: Template
    """What was seen, for people."""

    @field_validator("expr")
    @classmethod
    def _promql(cls, expr: str) -> str:
        try:
            parse(string.Template(expr).safe_substitute(run="run", limit="1"))
        except PromqlError as error:
            raise ValueError(str(error)) from None
        if "$run" not in expr and "${run}" not in expr:
            raise ValueError('it asks for every run: write {run="$run"} into its selectors')
        return expr

    @model_validator(mode="after")
    def _one_band(self) -> Self:
        given = [
            one for one in (self.above, self.below, self.above_usual, self.below_usual) if one is not None
        ]
        if len(given) != 1:
            raise ValueError("a signal has one band: give one of above, below, above_usual, below_usual")
        if self.usual_of is not None and not self.relative:
            raise ValueError("usual_of has no effect without above_usual or below_usual: leave it out")
        return self

    @property
    def limit(self) -> float:
        """The band's number."""
        given = (self.above, self.below, self.above_usual, self.below_usual)
        return next(one for one in given if one is not None)

    @property
    def relative(self) -> bool:
        """Whether the band is one around what is usual for the series."""
        return self.above_usual is not None or self.below_usual is not None

    @property
    def upper(self) -> bool:
        """Whether it is the high values that lie outside."""
        return self.above is not None or self.above_usual is not None

    def query(self, run: str) -> str:
        """Return the expression for `run`, a valid run name."""
        return string.Template(self.expr).substitute(run=run, limit=repr(self.limit))


class SignalFile(Strict):
    """A whole file of signals; their order is that of causality."""

    version: Literal[1]
    window: PositiveDuration = 900.0
    """Seconds before the alert that are looked at."""
    resolution: PositiveDuration = 2.0
    """Seconds between two points."""
    signals: dict[str, Signal] = Field(min_length=1, max_length=MAX_SIGNALS)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.window / self.resolution > MAX_POINTS:
            raise ValueError(
                f"window / resolution is {self.window / self.resolution:.0f} points and at most {MAX_POINTS} "
                "are asked for: look back less far, or less finely"
            )
        return self


def load_signals(path: Path) -> SignalFile:
    """Return the signals in `path`.

    Raises:
        SignalFileError: the file cannot be read, or something in it is not valid; the sentence names it.
    """
    try:
        with path.open("rb") as handle:
            content = handle.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SignalFileError(f"signals {path} cannot be read: {error.strerror or error}.") from error
    if len(content) > _MAX_FILE_BYTES:
        raise SignalFileError(f"signals {path} is larger than {_MAX_FILE_BYTES} bytes: this cannot be them.")
    try:
        document = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        sentence = " ".join(str(error).split())[:300]
        raise SignalFileError(f"signals {path} is not valid YAML: {sentence}.") from None
    if not isinstance(document, dict):
        raise SignalFileError(f"signals {path} holds no mapping: begin it with 'version: 1'.")
    try:
        return SignalFile.model_validate(document)
    except ValidationError as error:
        raise SignalFileError(f"signals {path}: {first_fault(error)}") from None
