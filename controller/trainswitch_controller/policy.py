"""The policy: which alert causes which interventions, how often, and with whose consent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from trainswitch.errors import CommandError
from trainswitch.intervention.commands import ACTIONS, check_action_name, checked_params
from trainswitch_controller.errors import PolicyError
from trainswitch_controller.validation import Strict, first_fault

PAUSES = frozenset({"pause", "pause_and_snapshot"})
"""Actions that hold the run; the first answer to a trouble, if it is one of them, waits for no cooldown."""

WATCHDOG = "Watchdog"
"""The always-firing alert that proves the chain to be alive; it never acts."""

MAX_POLICY_BYTES = 1_000_000

_WHERE_CUSTOM = "An action that the training script registers belongs in the policy's custom_actions."

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: object) -> float:
    """Return the seconds that a text such as ``90s``, ``10m``, ``24h`` or ``7d`` stands for.

    Raises:
        ValueError: it is no such text.
    """
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a duration as a number and one of s, m, h, d: '90s', '10m', '24h'")
    return float(match[1]) * _SECONDS[match[2]]


def parse_escalation(value: object) -> float | Literal["off"]:
    """Return what ``escalate_after`` says: the seconds of a duration, or ``off``.

    Raises:
        ValueError: it is neither.
    """
    if value is False or value == "off":  # YAML reads a bare off as false
        return "off"
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or write off") from None


Duration = Annotated[float, BeforeValidator(parse_duration)]
Escalation = Annotated[float | Literal["off"] | None, BeforeValidator(parse_escalation)]
"""Seconds, ``off``, or None where it was not given."""
PositiveDuration = Annotated[Duration, Field(gt=0.0)]
Mode = Literal["enforce", "approve", "observe"]


class Rung(Strict):
    """One step of a ladder: what the trainer is told to do."""

    action: str
    params: dict[str, Any] = Field(default={}, validate_default=True)
    resume_when_resolved: bool = False
    """End this pause when its own alert resolves, if nothing was commanded since."""

    @model_validator(mode="after")
    def _valid_command(self) -> Self:
        if self.action in ACTIONS:  # the policy judges the others, because it names them
            try:
                # Defaults are spelled out, so that the journal shows what was really asked for.
                self.params.update(checked_params(self.action, self.params))
            except CommandError as error:
                raise ValueError(str(error)) from None
        if self.resume_when_resolved and self.action not in PAUSES:
            raise ValueError(f"resume_when_resolved belongs to a rung that pauses, not to {self.action!r}")
        return self


FINAL_PAUSE = Rung(action="pause")
"""What follows the last rung of every ladder."""


class AlertRule(Strict):
    """What one alert causes."""

    ladder: tuple[Rung, ...] = Field(min_length=1)
    """Rung k + 1 is taken when the same trouble returns after rung k or outlasts it; in the end, a pause."""
    mode: Mode | None = None
    """Overrides the policy's mode for this alert."""
    cooldown: Duration | None = None
    """Overrides the policy's cooldown for this alert."""
    escalate_after: Escalation = None
    """Overrides the policy's escalate_after for this alert."""

    def rung(self, number: int) -> Rung:
        """Return rung `number`, counted from 1; beyond the ladder's end it is a pause."""
        return self.ladder[number - 1] if number <= len(self.ladder) else FINAL_PAUSE


class Limit(Strict):
    """At most so many interventions within a sliding window."""

    interventions: int = Field(ge=1, le=10_000)
    window: PositiveDuration


class Budget(Strict):
    """How many interventions the controller may make on its own."""

    per_run: Limit = Limit(interventions=5, window="24h")
    global_: Limit = Field(default=Limit(interventions=20, window="1h"), alias="global")
    when_exhausted: Literal["pause", "pause_and_snapshot"] = "pause"


class Policy(Strict):
    """A whole policy file."""

    version: Literal[1]
    mode: Mode = "enforce"
    """``enforce`` commands, ``approve`` waits for an operator's consent, ``observe`` only journals."""
    command_ttl: PositiveDuration = 600.0
    """A trainer that reads a command later than this answers ``expired``."""
    max_alert_age: PositiveDuration = 3600.0
    """A firing alert that began earlier than this is stale and does not act."""
    cooldown: Duration = 60.0
    """Seconds after an intervention in which the same run is left alone."""
    ladder_reset: PositiveDuration = 86400.0
    """After so many seconds without the trouble, its ladder begins again at rung 1."""
    escalate_after: Annotated[float | Literal["off"], BeforeValidator(parse_escalation)] = 600.0
    """An alert that still fires so many seconds after a rung was carried out takes the next one."""
    relapse_within: Duration = 600.0
    """Trouble that returns within so many seconds after a rollback has loaded was in the checkpoint, too."""
    budget: Budget = Budget()
    custom_actions: tuple[str, ...] = ()
    """What the ladders may name besides the built-in actions: what training scripts register."""
    alerts: dict[str, AlertRule]

    @field_validator("alerts")
    @classmethod
    def _no_watchdog(cls, alerts: dict[str, AlertRule]) -> dict[str, AlertRule]:
        if WATCHDOG in alerts:
            raise ValueError(f"{WATCHDOG} fires always and can cause no intervention: remove it")
        return alerts

    @field_validator("custom_actions")
    @classmethod
    def _allowed_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for index, name in enumerate(names):
            try:
                check_action_name(name)
            except CommandError as error:
                raise ValueError(str(error)) from None
            if name in names[:index]:
                raise ValueError(f"{name!r} is listed twice: remove one")
        return names

    @model_validator(mode="after")
    def _known_actions(self) -> Self:
        for alert, rule in self.alerts.items():
            for number, rung in enumerate(rule.ladder):
                try:
                    checked_params(rung.action, rung.params, custom=self.custom_actions, where=_WHERE_CUSTOM)
                except CommandError as error:
                    raise ValueError(f"alerts.{alert}.ladder.{number}: {error}") from None
        return self

    def cooldown_of(self, rule: AlertRule) -> float:
        """Return the seconds that `rule` leaves a run alone after an intervention."""
        return self.cooldown if rule.cooldown is None else rule.cooldown

    def escalation_of(self, rule: AlertRule) -> float | None:
        """Return the seconds after which lasting trouble takes the next rung; None: it never does."""
        wait = self.escalate_after if rule.escalate_after is None else rule.escalate_after
        return None if wait == "off" else wait


def load_policy(path: Path) -> tuple[Policy, str]:
    """Return the policy in `path` and the SHA-256 of the file's content.

    Raises:
        PolicyError: the file cannot be read, is not YAML, or is no valid policy; the sentence names the file,
            the key, the value, and the nearest key that exists.
    """
    try:
        with path.open("rb") as handle:
            content = handle.read(MAX_POLICY_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"policy {path} cannot be read: {error.strerror or error}.") from error
    if len(content) > MAX_POLICY_BYTES:
        raise PolicyError(f"policy {path} is larger than {MAX_POLICY_BYTES} bytes: this cannot be a policy.")
    try:
        document = yaml.load(content, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise PolicyError(f"policy {path} is not valid YAML: {' '.join(str(error).split())[:300]}.") from None
    if not isinstance(document, dict):
        raise PolicyError(f"policy {path} holds no mapping: begin it with 'version: 1'.")
    try:
        policy = Policy.model_validate(document)
    except ValidationError as error:
        raise PolicyError(f"policy {path}: {first_fault(error)}") from None
    return policy, hashlib.sha256(content).hexdigest()


class _UniqueKeys(yaml.SafeLoader):
    """YAML lets the last of two equal keys win silently; a policy must not lose a rule that way."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} is given twice", key.start_mark
                )
        return super().construct_mapping(node, deep)
