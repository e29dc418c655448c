"""The base of all settings: frozen pydantic models with strict types and one-line errors.

A setting is declared once, with its type, default, range and help text (`description`), and is marked with
`MACHINE` if it belongs to the machine. Options, JSON and error messages are made from that declaration.
"""

from __future__ import annotations

import difflib
import types
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from eagc_ops.app.places import SettingError

MACHINE: Final = "machine"
"""Marks a setting (`Annotated[int, MACHINE]`) that affects no number of a run; resuming may change it."""
ADDED: Final = "added"
"""Marks a setting that earlier versions lacked. Its default is what they did, so their runs can be read."""


class ConfigError(SettingError):
    """A configuration cannot be used. The message is one line that names key, value and remedy."""


class Settings(BaseModel):
    """A frozen set of settings. Unknown names, wrong types and values out of range raise `ConfigError`.

    Types are strict: a number in quotes is not a number, True is not 1, and 2.0 is not a whole number. A
    float setting also takes a whole number; it takes neither NaN nor infinity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _error(type(self), values, error) from None


def kinds(annotation: Any) -> tuple[Any, ...]:
    """The types and the choices that an annotation allows.

    >>> kinds(int | Literal["estimate"] | None)
    (<class 'int'>, 'estimate', <class 'NoneType'>)
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kinds(arguments[0])
    if origin in (Union, types.UnionType):
        return tuple(kind for member in arguments for kind in kinds(member))
    return arguments if origin is Literal else (annotation,)


def describe(allowed: tuple[Any, ...]) -> str:
    """The result of `kinds` in words.

    >>> describe((float, type(None))), describe(("mean", "sum"))
    ('a number or none', 'one of mean, sum')
    """
    if all(isinstance(kind, str) for kind in allowed):
        return f"one of {', '.join(allowed)}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return " or ".join(_words_of_group(kind) or words.get(kind, repr(kind)) for kind in allowed)


def is_group(kind: Any) -> bool:
    """Whether a kind is a nested group of settings."""
    return isinstance(kind, type) and issubclass(kind, Settings)


def _words_of_group(kind: Any) -> str:
    return f"an object with the keys {', '.join(kind.model_fields)}" if is_group(kind) else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def _error(cls: type[Settings], values: dict[str, Any], error: ValidationError) -> ConfigError:
    """The first of pydantic's errors in one line; unknown names come before wrong values."""
    errors = sorted(error.errors(include_url=False), key=lambda entry: entry["type"] != "extra_forbidden")
    first = errors[0]
    cause = first.get("ctx", {}).get("error")
    if not first["loc"]:  # of a validator that compares several settings
        return cause if isinstance(cause, ConfigError) else ConfigError(str(cause))
    name = str(first["loc"][0])
    known = [name] if name in cls.model_fields else []
    return ConfigError(_message(cls, values, errors, name, cause), *known)


def _message(
    cls: type[Settings], values: dict[str, Any], errors: list[Any], name: str, cause: Exception | None
) -> str:
    first = errors[0]
    if first["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(name, cls.model_fields, 1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        return f"{name} is not a setting of {values.get('method', cls.__name__)}{hint}"
    if first["type"] == "string_too_short":
        return f"{name} is empty: name a path, or leave it out"
    if first["type"] == "missing":
        return f"{name} is missing: {values.get('method', cls.__name__)} has no default for it"
    if isinstance(cause, ConfigError):  # a nested group's error names its own setting
        return f"{name}.{cause}"
    # A union has one error for each member.
    of_members = [entry for entry in errors if entry["loc"][0] == name]
    bounds = [
        f"{sign} {_number(entry['ctx'][key])}"
        for entry in of_members
        for key, sign in _SIGNS.items()
        if key in entry.get("ctx", {})
    ]
    if first["type"] == "finite_number":
        bounds = ["a finite number"]
    wanted = bounds[0] if bounds else describe(kinds(cls.model_fields[name].annotation))
    return f"{name} must be {wanted}, got {first['input']!r}"
