"""Command-line options made from the settings, each with its help text, choices and default."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Collection
from typing import Any

from pydantic.fields import FieldInfo

from eagc_ops.training.config.datasets import SPECS
from eagc_ops.training.config.presets import PRESETS, resolve
from eagc_ops.training.config.schema import CONFIGS, Config
from eagc_ops.training.config.settings import Settings, describe, is_group, kinds


def add_config_arguments(parser: argparse.ArgumentParser, names: Collection[str] | None = None) -> None:
    """Add one option for every setting (or those in `names`) of `Config` and of the methods.

    Only options that the user writes end up in the namespace, by the names of the settings. A nested group
    such as `diagnose` has `--diagnose`, `--no-diagnose` and an option for each of its settings; any of these
    but `--no-diagnose` switches it on.
    """
    owners: dict[str, list[str]] = {}
    for method, cls in sorted(CONFIGS.items()):
        for name in cls.model_fields:
            owners.setdefault(name, []).append(method)
    sections: dict[str, Any] = {"": parser}
    for name, methods in owners.items():
        if names is not None and name not in names:
            continue
        title = "" if name in Config.model_fields else f"options of {', '.join(methods)}"
        if title not in sections:
            sections[title] = parser.add_argument_group(title)
        _add_option(sections[title], name, CONFIGS[methods[0]].model_fields[name])


def config_from_arguments(arguments: argparse.Namespace) -> Config:
    """The configuration that a namespace filled by `add_config_arguments` stands for."""
    known = {name for cls in CONFIGS.values() for name in cls.model_fields}
    return resolve(**{name: value for name, value in vars(arguments).items() if name in known})


def _add_option(section: Any, name: str, field: FieldInfo) -> None:
    allowed = kinds(field.annotation)
    settings = {"dest": name, "default": argparse.SUPPRESS, "help": _help(field, _default(name, field))}
    if is_group(allowed[0]):
        section.add_argument(_flag(name), action=_GroupOnOff, **settings)
        _add_group_options(section, name, allowed[0])
    elif name == "eagc":
        section.add_argument(_flag(name), action=_EagcOnOff, **settings)
    elif allowed[0] is bool:
        section.add_argument(_flag(name), action=argparse.BooleanOptionalAction, **settings)
    elif name in ("method", "dataset"):
        section.add_argument(
            _flag(name), choices=sorted(CONFIGS) if name == "method" else [*SPECS], **settings
        )
    else:
        section.add_argument(_flag(name), **_value(allowed), **settings)


def _add_group_options(section: Any, name: str, group: type[Settings]) -> None:
    for part, field in group.model_fields.items():
        section.add_argument(
            _flag(f"{name}_{part}"),
            action=_GroupPart,
            part=part,
            dest=name,
            default=argparse.SUPPRESS,
            help=_help(field, _text(field.default)),
            **_value(kinds(field.annotation)),
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _value(allowed: tuple[Any, ...]) -> dict[str, Any]:
    """The keywords of `add_argument` that read a value of these kinds."""
    if isinstance(allowed[0], str):
        return {"choices": [kind for kind in allowed if isinstance(kind, str)]}
    return {"type": _reader(allowed), "metavar": {int: "N", float: "X", str: "TEXT"}[allowed[0]]}


def _reader(allowed: tuple[Any, ...]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text in allowed:
            return text
        return None if type(None) in allowed and text.lower() == "none" else allowed[0](text)

    def read_or_refuse(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {describe(allowed)}, got {text!r}") from None

    return read_or_refuse


class _EagcOnOff(argparse.BooleanOptionalAction):
    """--eagc and --no-eagc; `--eagc init` and `--eagc on` also set sptnet_eagc, SPTNet's way to use EAGC."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.nargs, self.choices, self.metavar = "?", ("init", "on"), "init|on"

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values and option_string == "--no-eagc":
            parser.error(f"--no-eagc takes no value, got {values!r}")
        super().__call__(parser, namespace, values, option_string)
        if values:
            namespace.sptnet_eagc = values


class _GroupOnOff(argparse.BooleanOptionalAction):
    """--group switches a nested group on and keeps the parts that are set; --no-group switches it off."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        off = str(option_string).startswith("--no-")
        setattr(namespace, self.dest, None if off else getattr(namespace, self.dest, None) or {})


class _GroupPart(argparse.Action):
    """--group-part VALUE sets one setting of a nested group, and so switches the group on."""

    def __init__(self, *args: Any, part: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.part = part

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parts = getattr(namespace, self.dest, None) or {}
        setattr(namespace, self.dest, {**parts, self.part: values})


# Help texts ----------------------------------------------------------------------------------------------


def _help(field: FieldInfo, default: str) -> str:
    return f"{field.description} [{default}]".replace("%", "%%")


def _default(name: str, field: FieldInfo) -> str:
    """The default as --help shows it: one value, or the values that presets and data sets give it."""
    if name in ("method", "preset", "dataset"):
        return str(field.default)
    recipes = [config for method in sorted(CONFIGS) for config in _recipes(CONFIGS[method], method)]
    values = dict.fromkeys(_text(getattr(config, name)) for config in recipes if hasattr(config, name))
    return " | ".join(values) if len(values) == 1 else f"by preset and data set: {' | '.join(values)}"


def _text(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@functools.cache
def _recipes(_cls: type[Config], method: str) -> list[Config]:
    """A method's configurations under all presets and data sets; `_cls` is only a part of the cache key."""
    return [resolve(method, dataset, preset) for preset in PRESETS for dataset in SPECS]
