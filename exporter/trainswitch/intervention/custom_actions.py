"""CustomActions: what a training script lets itself be told to do besides the built-in actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from trainswitch.errors import CommandError, ConfigError
from trainswitch.intervention.commands import NoParams, check_action_name, parse_params
from trainswitch.intervention.deeds import Deed

Handler = Callable[[Any], str | None]
"""Takes the parsed parameters (None where the action has none), and may return a sentence for the answer."""


class CustomActions:
    """The actions of one run by name."""

    def __init__(self) -> None:
        """Begin with none."""
        self._deeds: dict[str, Deed] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that are registered, in their order."""
        return tuple(self._deeds)

    def register(self, name: str, handler: Handler, params: Any) -> None:
        """Add an action; see `Monitor.register_action`.

        Raises:
            ConfigError: the name is not allowed, or is taken; or `params` is not a model that refuses unknown
                parameters.
        """
        try:
            check_action_name(name)
        except CommandError as error:
            raise ConfigError(str(error)) from None
        if name in self._deeds:
            raise ConfigError(f"action {name!r} is registered already: choose another name.")
        if not callable(handler):
            raise ConfigError(f"the handler of action {name!r} is {handler!r}: give a function.")
        if params is not None and not (isinstance(params, type) and issubclass(params, BaseModel)):
            raise ConfigError(
                f"params of action {name!r} is {params!r}: give a pydantic model class, or None."
            )
        model: type[BaseModel] = NoParams if params is None else params
        if model.model_config.get("extra") != "forbid":
            raise ConfigError(
                f"params of action {name!r}, {model.__name__}, would ignore a parameter that is misspelt: "
                "give it model_config = ConfigDict(extra='forbid')."
            )

        def check(given: dict[str, Any]) -> None:
            parse_params(name, model, given)

        def act(given: dict[str, Any]) -> str:
            parsed = parse_params(name, model, given)
            said = handler(None if params is None else parsed)
            # Whatever a handler returns: it has acted, and that must be answered.
            return ("" if said is None else str(said)) or f"{name} was carried out."

        self._deeds[name] = Deed(check=check, act=act)

    def get(self, name: str) -> Deed | None:
        """Return the action of `name`, for parameters as they came; None where there is none."""
        return self._deeds.get(name)
