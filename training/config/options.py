"""Command-line options made from the settings, each with its help text, choices and default."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from eagc_ops.app.console import plain_number
from eagc_ops.training.config.datasets import DATASETS, SPECS
from eagc_ops.training.config.presets import NULL, PRESETS, resolve
from eagc_ops.training.config.schema import CONFIGS, Config
from eagc_ops.training.config.settings import ConfigError, Settings, describe, is_group, kinds


class Recipe(NamedTuple):
    """The recipe whose values --help shows as defaults."""

    method: str = "simgcd"
    dataset: str = "digits"
    preset: str = "paper"

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, preset {self.preset}"


DEFAULT_RECIPE = Recipe()
# Headings of `eagc train --help`, each with the setting that is its first
SECTIONS = {
    "method": "method and data",
    "eagc": "the coordinator (EAGC)",
    "warm_start": "the student",
    "reference_blocks": "the reference model, trained once on labelled images",
    "epochs": "optimization",
    "device": "machine, caches and log",
}
# What `eagc train --help` shows; --help-all shows every setting.
COMMON = (
    *("method", "dataset", "preset", "root", "split_file", "skip_unreadable", "image_size", "backbone"),
    *("weights", "k", "seed", "eagc", "lambda_a", "lambda_p", "subspace", "aperture", "warm_start"),
    *("trainable_blocks", "reference_epochs", "epochs", "batch_size", "backbone_lr", "head_lr", "device"),
    *("precision", "pixel_cache", "trunk_cache", "workers", "init"),
)
LISTED_NOW = "now"  # --skip-unreadable without a file: the command looks for such images first


def recipe_of(argv: Sequence[str]) -> Recipe:
    """The recipe that a command line names; a part that it leaves out or misspells has its default.

    >>> recipe_of(["--epochs", "3", "--dataset", "cub", "--preset", "bset"])
    Recipe(method='simgcd', dataset='cub', preset='paper')
    """
    known: dict[str, Collection[str]] = {"method": CONFIGS, "dataset": SPECS, "preset": PRESETS}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in known:
        parser.add_argument(f"--{name}", nargs="?")
    typed = vars(parser.parse_known_args(list(argv))[0])
    return Recipe(**{name: value for name, value in typed.items() if value in known[name]})


def as_options(error: Exception) -> str:
    """The text of an error about settings, in the words of the command line.

    >>> as_options(ValueError("accumulation=3 does not divide batch_size=8; or choose eagc=False"))
    '--accumulation 3 does not divide --batch-size 8; or choose --no-eagc'
    >>> as_options(ConfigError("k must be >= 5, the number of known classes, got 3", "k"))
    '--k must be >= 5, the number of known classes, got 3'
    """
    text = str(error)
    if isinstance(error.__cause__, ConfigError):  # about the settings in a file, not about options
        return text
    names = {name for cls in CONFIGS.values() for name in cls.model_fields}
    groups = [name for name, field in Config.model_fields.items() if is_group(kinds(field.annotation)[0])]
    said = [name for name in getattr(error, "settings", ()) if re.fullmatch("[a-z_]+", name)]
    any_name, compound, group = (
        "|".join(sorted(some, key=len, reverse=True))
        for some in (names, {name for name in {*names, *said} if "_" in name}, groups)
    )
    # A setting with its value, or that of a group, or a name that is no English word. A path is left alone.
    written = rf"(?<![\w./-])(?:({any_name})=('[^']*'|[^\s;:,()]+)|(?:{group})\.\w+|(?:{compound})(?![\w./]))"
    text = re.sub(written, _option, text)
    for name in said:
        text = re.sub(rf"(?<![\w./-]){name}\b", _flag(name), text, count=1)
    return text


def _option(found: re.Match[str]) -> str:
    if found[1] is None:
        return _flag(found[0].replace(".", "_"))
    name, value = found[1], found[2].strip("'")
    if value in ("True", "False"):
        return _flag(name) if value == "True" else f"--no-{_flag(name)[2:]}"
    return f"{_flag(name)} {'none' if value == 'None' else value}"


def add_config_arguments(
    parser: argparse.ArgumentParser,
    names: Collection[str] | None = None,
    recipe: Recipe = DEFAULT_RECIPE,
    shown: Collection[str] | None = None,
) -> None:
    """Add one option for every setting (or those in `names`) of `Config` and of the methods.

    --help shows the values of `recipe` as defaults, under headings if there are all settings, and leaves out
    what is not in `shown` (None: nothing).

    Only options that the user writes end up in the namespace, by the names of the settings. A nested group
    such as `diagnose` has `--diagnose`, `--no-diagnose` and an option for each of its settings; any of these
    but `--no-diagnose` switches it on.
    """
    owners: dict[str, list[str]] = {}
    for method, cls in sorted(CONFIGS.items()):
        for name in cls.model_fields:
            owners.setdefault(name, []).append(method)
    title, sections = "", dict[str, Any]({"": parser})
    for name, methods in owners.items():
        if names is not None and name not in names:
            continue
        if name not in Config.model_fields:
            title = f"options of {', '.join(methods)}"
        elif names is None:
            title = SECTIONS.get(name, title)
        if title not in sections:
            sections[title] = parser.add_argument_group(title)
        owner = recipe.method if recipe.method in methods else methods[0]
        field = CONFIGS[owner].model_fields[name]
        _add_option(sections[title], name, field, _default(name, field, recipe._replace(method=owner)))
    for action in parser._actions:
        if shown is not None and action.dest in owners and action.dest not in shown:
            action.help = argparse.SUPPRESS


def config_from_arguments(arguments: argparse.Namespace) -> Config:
    """The configuration that a namespace filled by `add_config_arguments` stands for."""
    known = {name for cls in CONFIGS.values() for name in cls.model_fields}
    return resolve(**{name: value for name, value in vars(arguments).items() if name in known})


def train_command(config: Config, output: str) -> list[str]:
    """The words of the `eagc train` that trains a run in the folder `output`, and goes on with it.

    >>> config = resolve("simgcd", "digits", "paper", eagc=False, diagnose={"every": 5})
    >>> print(*train_command(config, "runs/a"))
    eagc train --method simgcd --dataset digits --preset paper -o runs/a --no-eagc --diagnose-every 5
    """
    recipe = Recipe(config.method, config.dataset, config.preset)
    words = [f"eagc train --method {recipe.method} --dataset {recipe.dataset} --preset {recipe.preset}"]
    words = [*words[0].split(), "-o", output]
    for name, default in resolve(*recipe):
        value = getattr(config, name)
        if value == default:
            continue
        if isinstance(value, Settings):
            parts = [(part, x) for part, x in value if x != type(value).model_fields[part].default]
            words += [word for part, x in parts for word in (_flag(f"{name}_{part}"), _text(x))]
            words += [] if parts else [_flag(name)]
        elif isinstance(value, bool) or is_group(kinds(type(config).model_fields[name].annotation)[0]):
            words.append(_flag(name) if value else f"--no-{_flag(name)[2:]}")
        else:
            words += [_flag(name), _text(value)]
    return words


def _add_option(section: Any, name: str, field: FieldInfo, default: str) -> None:
    allowed = kinds(field.annotation)
    settings = {"dest": name, "default": argparse.SUPPRESS, "help": _help(field, default)}
    if is_group(allowed[0]):
        if type(None) in allowed:  # it can be switched off
            section.add_argument(_flag(name), action=_GroupOnOff, **settings)
        _add_group_options(section, name, allowed[0])
    elif name == "eagc":
        words = {"nargs": "?", "choices": ("init", "on"), "metavar": "init|on"}
        section.add_argument("--eagc", action=_Eagc, **words, **settings)
        off = {**settings, "help": "the same run without the coordinator"}
        section.add_argument("--no-eagc", action="store_false", **off)
        section.add_argument(
            "--null",
            action=_Null,
            nargs=0,
            default=argparse.SUPPRESS,
            help="a null run: both lambdas are 1e-4, so it differs from --no-eagc only by rounding, which is "
            "the noise floor of a comparison",
        )
    elif name == "skip_unreadable":
        section.add_argument(_flag(name), nargs="?", const=LISTED_NOW, metavar="FILE", **settings)
    elif allowed[0] is bool:
        section.add_argument(_flag(name), action=argparse.BooleanOptionalAction, **settings)
    elif name in ("method", "dataset"):
        section.add_argument(
            _flag(name), choices=sorted(CONFIGS) if name == "method" else DATASETS, **settings
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
    kind = allowed[0] if isinstance(allowed[0], type) else type(allowed[0])
    return {"type": _reader(allowed), "metavar": {int: "N", float: "X", str: "TEXT"}[kind]}


def _reader(allowed: tuple[Any, ...]) -> Callable[[str], Any]:
    choices = {str(kind): kind for kind in allowed if not isinstance(kind, type)}

    def read(text: str) -> Any:
        if text in choices:
            return choices[text]
        if type(None) in allowed and text.lower() == "none":
            return None
        if not isinstance(allowed[0], type):
            raise ValueError
        return plain_number(allowed[0], text) if allowed[0] in (int, float) else allowed[0](text)

    def read_or_refuse(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {describe(allowed)}, got {text!r}") from None

    return read_or_refuse


class _Eagc(argparse.Action):
    """--eagc switches EAGC on; with a value it also sets sptnet_eagc, SPTNet's way to use EAGC."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.eagc = True
        if values:
            namespace.sptnet_eagc = values


class _Null(argparse.Action):
    """--null sets both strengths to almost nothing."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        for name, value in NULL.items():
            setattr(namespace, name, value)


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


def _default(name: str, field: FieldInfo, recipe: Recipe) -> str:
    """The default as --help shows it: one value, with the name of its recipe if others have other values."""
    if name in ("method", "preset", "dataset"):
        return str(getattr(recipe, name))
    recipes = [config for method in sorted(CONFIGS) for config in _recipes(CONFIGS[method], method)]
    values = {_text(getattr(config, name)) for config in recipes if hasattr(config, name)}
    value = _text(getattr(resolve(*recipe), name))
    return value if len(values) == 1 else f"{value} for {recipe}"


def _text(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@functools.cache
def _recipes(_cls: type[Config], method: str) -> list[Config]:
    """A method's configurations under all presets and data sets; `_cls` is only a part of the cache key."""
    return [resolve(method, dataset, preset) for preset in PRESETS for dataset in DATASETS]
