"""Every exception that the controller raises on purpose; each message is one sentence with the way out.

TrainswitchError
└── ControllerError             carries the HTTP status that tells the caller whether a retry can help
    ├── SettingsError           a setting of the controller is not valid (also a ConfigError)
    ├── PolicyError             the policy file is not valid (also a ConfigError)
    ├── PromqlError             a text is no PromQL expression
    ├── RuleFileError           a rule file cannot be read, or something in it is not valid
    ├── ReplayError             recorded runs cannot be replayed
    │   ├── RecordedRunError    a log cannot be read as a run
    │   │   └── NotALog         a file or folder holds no log of a run at all
    │   └── ReplayRulesError    Prometheus's rules cannot be read, or not be followed in a replay
    ├── TuneError               no limits can be proposed from these runs and labels
    ├── RelayFileError          the file of relays is not valid (also a ConfigError)
    ├── SignalFileError         the file of signals is not valid (also a ConfigError)
    ├── PrometheusUnavailable   the Prometheus that onsets are looked for in does not answer
    ├── ServeError              the controller cannot open its port or its TLS files
    ├── GatewayUnavailable      a relay's gateway cannot be reached, or not now                 502
    ├── TokenError              a token file is missing, empty or readable by others            503
    ├── JournalError            the journal cannot be opened, read or committed                 503
    ├── LeadershipLost          another controller writes the commands now                      503
    ├── NotReady                journal and control folder have not been reconciled yet         503
    ├── SlowBody                the request's body did not arrive in time                       503
    ├── ControlFolderError      the control folder cannot be listed                             503
    └── RequestError            the request itself is at fault: repeating it cannot help
        ├── MalformedBody       not JSON                                                        400
        ├── Unauthorized        the bearer token is missing or wrong                            401
        ├── Forbidden           the bearer token is another role's                              403
        ├── NotFound            no such run or command                                          404
        ├── Conflict            the command's or the run's state does not allow it              409
        ├── BodyTooLarge        the body is over the limit                                      413
        ├── GatewayRefused      a relay's gateway does not take what it is sent                 422
        ├── Unprocessable       JSON, but not what belongs here                                 422
        └── TooManyRequests     too many wrong tokens, or orders, from one address              429
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from trainswitch.errors import ConfigError, TrainswitchError


class ControllerError(TrainswitchError):
    """Base of everything that the controller raises on purpose.

    Attributes:
        status: the HTTP status of the answer: 5xx where a retry can help, 4xx where it cannot.
    """

    status: ClassVar[int] = 500


class SettingsError(ControllerError, ConfigError):
    """A setting of the controller is unknown, misplaced or out of bounds."""


class PolicyError(ControllerError, ConfigError):
    """The policy file cannot be read, or a key or value in it is not valid."""


class PromqlError(ControllerError):
    """A text is no PromQL expression."""


class ReplayError(ControllerError):
    """Recorded runs cannot be replayed."""


class RecordedRunError(ReplayError):
    """A log cannot be read, or is not a log of a run."""


class NotALog(RecordedRunError):
    """A file or folder holds no log of a run at all; among others it can be left out."""


class ReplayRulesError(ReplayError):
    """A rule file of Prometheus cannot be read, or a rule in it cannot be followed in a replay."""


class TuneError(ControllerError):
    """No limits can be proposed: labels are not valid, or the runs say nothing about any signal."""


class RuleFileError(ControllerError):
    """A rule file cannot be read, or something in it is not valid.

    Attributes:
        faults: every sentence of its own, with file, line and column.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        count = f"{len(faults)} faults:\n" if len(faults) > 1 else ""
        super().__init__(count + "\n".join(faults))
        self.faults = tuple(faults)


class ServeError(ControllerError):
    """The controller cannot open its port or its TLS files."""


class RelayFileError(ControllerError, ConfigError):
    """The file of relays cannot be read, or a relay in it is not valid."""


class SignalFileError(ControllerError, ConfigError):
    """The file of signals cannot be read, or a signal in it is not valid."""


class PrometheusUnavailable(ControllerError):
    """The Prometheus in which onsets are looked for cannot be reached, or does not answer in time."""


class GatewayUnavailable(ControllerError):
    """A relay's gateway cannot be reached, or asks for a later attempt."""

    status = 502


class TokenError(ControllerError):
    """A token file is missing, empty, weak, or readable by others; or one token has two roles."""

    status = 503


class JournalError(ControllerError):
    """The journal cannot be opened, read or committed; nothing was half stored."""

    status = 503


class LeadershipLost(ControllerError):
    """Another controller writes the commands now; this one follows."""

    status = 503


class NotReady(ControllerError):
    """The controller has not reconciled journal and control folder yet."""

    status = 503


class SlowBody(ControllerError):
    """The request's body did not arrive within the time that it has; the next one may."""

    status = 503


class ControlFolderError(ControllerError):
    """The control folder cannot be listed."""

    status = 503


class RequestError(ControllerError):
    """The request itself is at fault; repeating it cannot help."""

    status = 400


class MalformedBody(RequestError):
    """The body is not JSON."""


class Unauthorized(RequestError):
    """The bearer token is missing or wrong."""

    status = 401


class Forbidden(RequestError):
    """The bearer token is valid, but its role may not do this."""

    status = 403


class NotFound(RequestError):
    """No such run or command."""

    status = 404


class Conflict(RequestError):
    """The state of the command or of the run does not allow what was asked."""

    status = 409


class BodyTooLarge(RequestError):
    """The body is larger than the limit."""

    status = 413


class GatewayRefused(RequestError):
    """A relay's gateway does not take what it is sent; repeating it cannot help."""

    status = 422


class Unprocessable(RequestError):
    """The body is JSON, but not what belongs here."""

    status = 422


class TooManyRequests(RequestError):
    """One address sent too many wrong tokens, or too many orders.

    Attributes:
        retry_after: in how many seconds it may try again.
    """

    status = 429

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after
