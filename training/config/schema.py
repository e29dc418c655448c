"""Typed configuration: one dataclass, three named presets, and the command-line options generated from its fields.

A method adds its own fields by subclassing `Config` in its own file; `resolve` puts preset, dataset and switches together:

>>> config = resolve("simgcd", "scars", "release", lambda_p=0.5)
>>> config.warm_start, config.mlp_head_layers, config.lambda_p, config.memax_weight
(True, 1, 0.5, 1.0)
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import math
import operator
import types
from collections.abc import Collection
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is one line that names the key, the value and the remedy."""


def option(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    words: str = "",
) -> Any:
    """A configuration field with its help text and its allowed range. `words`: a text of several such words on the command line."""
    return field(
        default=default,
        metadata={"help": help, "at_least": at_least, "above": above, "below": below, "words": words},
    )


@dataclass(frozen=True)
class Config:
    """Everything that decides a run. Every recipe change of the released EAGC is a field of its own."""

    # What is trained on what
    method: str = option("simgcd", "GCD method")
    dataset: str = option("digits", "data set; 'digits' needs no download")
    preset: Literal["baseline", "paper", "release"] = option(
        "paper", "recipe: the method's own (no EAGC), as the paper's text says, or as the released scripts do"
    )
    root: str | None = option(None, "folder of the data set")
    split_file: str | None = option(None, "class split of SSB data sets or of a plain image folder")
    image_size: int | None = option(
        None, "side of the square input in pixels; none: the data set's own", at_least=1
    )
    backbone: str = option(
        "dino_vitb16", "ViT encoder: dino_vitb16, dinov2_vitb14_reg4, vit_digits or a timm name"
    )
    weights: str | None = option(
        None,
        "pretrained weights of the backbone (.pth or .safetensors); none: random, by the seed; digits: made if not given",
    )
    k: int | Literal["estimate"] | None = option(
        None,
        "number of classes, known and novel, to train for; 'estimate': found before training; none: the true number",
        at_least=1,
    )
    seed: int = option(0, "key of everything random (draws, augmentations, heads)", at_least=0)

    # The coordinator
    eagc: bool = option(True, "coordinate gradients between encoder and head; changes nothing else")
    lambda_a: float = option(0.7, "strength of the anchor term on labelled rows (AGA)", at_least=0)
    lambda_p: float = option(0.5, "strength of the projection of unlabelled rows (EEP)", at_least=0)
    subspace: Literal["conceptor", "pca"] = option(
        "conceptor", "known-class subspace: conceptor, or pca_k principal directions (ablation)"
    )
    aperture: float = option(2.0, "aperture eta of the conceptor", above=0)
    pca_k: int = option(16, "directions of the subspace 'pca'", at_least=1)
    anchor: Literal["mean", "sum"] = option(
        "mean", "anchor term divided by labelled rows times D (released numbers), or as printed"
    )
    alignment: Literal["gradient", "proximal", "gram", "relation"] = option(
        "gradient",
        "labelled features are held to the reference model by the anchor term (AGA), or by a loss of weight lambda_a instead",
    )
    tau: Literal["energy", "uniform"] = option(
        "energy", "projection weight by energy, or 1 for every unlabelled row (ablation)"
    )
    energy_momentum: float | None = option(
        None, "EMA momentum of the labelled mean energy; none: fixed", at_least=0, below=1
    )

    # The student
    warm_start: bool = option(
        False, "student starts from the reference model instead of the pretrained backbone"
    )
    trainable_blocks: int = option(1, "last blocks of the ViT that are trained", at_least=1)
    cls_only: bool = option(True, "compute only the CLS row of the last block (same numbers, faster)")
    mlp_head_layers: int = option(
        0, "layers of the extra MLP between encoder and heads (0, 1 or 2)", at_least=0
    )

    # The reference model, trained once on labelled data
    reference_blocks: int | None = option(
        None, "last blocks that the reference model trains; none: as trainable_blocks", at_least=1
    )
    reference_epochs: int = option(30, "epochs of the reference model", at_least=1)
    reference_batch_size: int = option(32, "images per batch of the reference model", at_least=1)
    reference_lr: float = option(
        0.02, "learning rate of the reference model, cosine to a thousandth", above=0
    )
    reference_weight_decay: float = option(
        1e-4, "weight decay of the reference model (biases and norms exempt)", at_least=0
    )

    # Optimisation
    epochs: int = option(200, "epochs of GCD training", at_least=1)
    batch_size: int = option(128, "images per optimiser step over all processes", at_least=2)
    accumulation: int = option(
        1, "micro-batches a step is split into; contrastive terms then see one micro-batch", at_least=1
    )
    backbone_lr: float = option(0.1, "learning rate of the encoder", above=0)
    head_lr: float = option(1.0, "learning rate of the heads", above=0)
    lr_floor: float = option(
        1e-3, "final learning rate of every group, as a fraction of the head's", at_least=0
    )
    momentum: float = option(0.9, "momentum of SGD", at_least=0, below=1)
    weight_decay: float = option(5e-5, "weight decay", at_least=0)

    # The machine
    device: Literal["auto", "cpu"] = option("auto", "where to train; auto: what Accelerate finds")
    precision: Literal["no", "bf16", "fp16"] = option("no", "mixed precision (released numbers: no)")
    deterministic: bool = option(
        False, "deterministic algorithms on a GPU too (a CPU repeats its bits anyway)"
    )
    trunk_cache: str | None = option(
        None, "folder for the trunk's tokens: computed once, then the trunk is never run"
    )
    cache_views: int = option(
        8, "augmented views of every image in the trunk cache; training draws two of them", at_least=2
    )
    cache_half: bool = option(False, "store the trunk cache in half precision")
    workers: int = option(0, "data loader processes; the draws do not depend on them", at_least=0)
    log_every: int = option(
        20, "steps between log lines; values are read from the device only then", at_least=1
    )
    checkpoint_every: int = option(
        0, "steps between checkpoints inside an epoch; 0: at the end of every epoch", at_least=0
    )
    diagnose: str | None = option(
        None,
        "measure gradient entanglement while training: GDC, SOC, rho, mixed gradients; every=N steps=N parameters=block|all k=N",
        words="KEY=VALUE",
    )
    headline: Literal["last", "best"] = option(
        "last", "epoch reported first, the other beside it; best is chosen with the truth of U"
    )

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):
            _check(f, hints[f.name], getattr(self, f.name))
        if self.mlp_head_layers > 2:
            raise ConfigError(f"mlp_head_layers={self.mlp_head_layers}: the release knows 0, 1 and 2")
        if self.batch_size % self.accumulation:
            raise ConfigError(
                f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}"
            )
        if self.alignment != "gradient" and not self.has_operator:
            raise ConfigError(
                f"alignment={self.alignment!r} stands in for the anchor term of EAGC, but the operator takes no part in this run: leave it "
                "out, or turn EAGC on (lambda_p=0 leaves the loss alone)"
            )
        if self.alignment != "gradient" and self.anchor == "sum":
            raise ConfigError(
                f"anchor='sum': alignment={self.alignment!r} replaces the anchor term, and is a mean; leave one of them out"
            )
        if self.diagnose is not None:
            read_diagnosis(self.diagnose)
            if self.accumulation > 1:
                raise ConfigError(
                    f"accumulation={self.accumulation}: gradients of one whole batch are compared; set it to 1 to diagnose"
                )

    @property
    def has_operator(self) -> bool:
        """Whether EAGC's operator takes part in this run. SPTNet's "EAGC" can also be its start alone."""
        return self.eagc

    @property
    def blocks_of_reference(self) -> int:
        """Last blocks that the reference model trains."""
        return self.trainable_blocks if self.reference_blocks is None else self.reference_blocks

    @classmethod
    def preset_values(cls, preset: str, dataset: str, backbone: str) -> dict[str, Any]:
        """What this method sets for a preset, data set and backbone. Methods override it."""
        return {}

    def replace(self, **changes: Any) -> Config:
        """This configuration with some settings changed, checked again."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary with every setting."""
        return asdict(self)

    def recipe(self) -> dict[str, Any]:
        """The settings that decide a run's numbers: all but those of the machine."""
        return {name: value for name, value in self.to_json().items() if name not in MACHINE}


# May change when a run is resumed: what the files hold and what is computed stays the same.
MACHINE = (
    "root",
    "split_file",
    "weights",
    "init",
    "device",
    "workers",
    "trunk_cache",
    "log_every",
    "checkpoint_every",
    "diagnose",
)

# The presets of the paper: method-independent part.
PRESETS: dict[str, dict[str, Any]] = {
    "baseline": {"eagc": False, "head_lr": 0.1},
    "paper": {"eagc": True, "head_lr": 1.0},
    "release": {
        "eagc": True,
        "head_lr": 1.0,
        "energy_momentum": 0.95,
        "warm_start": True,
        "mlp_head_layers": 1,
        "headline": "best",
    },
}

# What a data set decides whatever the preset. Small data: at 10 classes the MLP head with learning rate 1.0 collapses onto the known
# prototypes, so `digits` has neither.
DATASETS: dict[str, dict[str, Any]] = {
    "cifar10": {"reference_batch_size": 128},
    "cifar100": {"reference_batch_size": 128, "reference_epochs": 3},
    "imagenet100": {"reference_batch_size": 128},
    "digits": {
        "backbone": "vit_digits",
        "mlp_head_layers": 0,
        "head_lr": 0.1,
        "epochs": 20,
        "reference_epochs": 10,
    },
}


def resolve(
    method: str = "simgcd", dataset: str = "digits", preset: str = "paper", **switches: Any
) -> Config:
    """The configuration of a method on a data set under a preset, with `switches` on top (they win over everything)."""
    cls = config_class(method)
    if preset not in PRESETS:
        raise ConfigError(f"preset={preset!r}: choose from {', '.join(PRESETS)}")
    backbone = switches.get("backbone", DATASETS.get(dataset, {}).get("backbone", Config.backbone))
    values = {
        **PRESETS[preset],
        **cls.preset_values(preset, dataset, backbone),
        **DATASETS.get(dataset, {}),
        **switches,
    }
    return _build(cls, {"method": method, "dataset": dataset, "preset": preset, **values})


def config_class(method: str) -> type[Config]:
    """The configuration class of a method."""
    from eagc_ops.training.methods import METHODS  # methods subclass Config, so they are imported late

    if method not in METHODS:
        raise ConfigError(f"method={method!r}: choose from {', '.join(sorted(METHODS))}")
    return METHODS[method].Config


class Diagnosis(NamedTuple):
    """What the text `diagnose` asks for."""

    every: int = 1  # measure at optimiser steps 0, every, 2 * every, ...
    steps: int | None = None  # below this step; None: to the end
    parameters: str = "block"  # whose gradients: "block" the last one, as the released code; "all" that are trained, as the paper
    k: int = 16  # directions of SOC


def read_diagnosis(text: str) -> Diagnosis:
    """The settings in a text of key=value words; what is left out has its default.

    >>> read_diagnosis("every=10 steps=200")
    Diagnosis(every=10, steps=200, parameters='block', k=16)
    """
    found: dict[str, Any] = {}
    for word in text.split() or [""]:
        name, _, value = word.partition("=")
        if name not in Diagnosis._fields or not value:
            raise ConfigError(
                f"diagnose={text!r}: {word!r} is none of every=N, steps=N, parameters=block|all, k=N"
            )
        if name in found:
            raise ConfigError(f"diagnose={text!r}: {name} is given twice")
        if name == "parameters" and value not in ("block", "all"):
            raise ConfigError(f"diagnose={text!r}: parameters={value!r}: choose from block, all")
        if name != "parameters" and not (value.isdecimal() and int(value) >= 1):
            raise ConfigError(f"diagnose={text!r}: {name}={value!r}: expected a whole number >= 1")
        found[name] = value if name == "parameters" else int(value)
    return Diagnosis(**found)


def from_json(values: Any) -> Config:
    """The configuration `to_json` wrote. Missing, unknown and ill-typed keys are errors."""
    if not isinstance(values, dict) or not isinstance(values.get("method"), str):
        raise ConfigError("a configuration is a JSON object with a key 'method'")
    cls = config_class(values["method"])
    missing = [f.name for f in fields(cls) if f.name not in values]
    if missing:
        raise ConfigError(f"the configuration lacks {', '.join(missing)}; it was written by another version")
    return _build(cls, values)


def add_config_arguments(parser: argparse.ArgumentParser, names: Collection[str] | None = None) -> None:
    """One option for every field (or those in `names`) of `Config` and of the methods' own configurations; only given options end up in
    the namespace."""
    from eagc_ops.training.methods import METHODS

    owners: dict[str, list[str]] = {}
    for name in sorted(METHODS):
        for f in fields(METHODS[name].Config):
            owners.setdefault(f.name, []).append(name)
    common = {f.name for f in fields(Config)}
    groups: dict[str, Any] = {"": parser}
    for name, methods in owners.items():
        if names is not None and name not in names:
            continue
        title = "" if name in common else f"options of {', '.join(methods)}"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_option(
            groups[title], name, METHODS[methods[0]].Config, sorted(METHODS) if name == "method" else None
        )


def config_from_arguments(arguments: argparse.Namespace) -> Config:
    """The configuration that a namespace filled by `add_config_arguments` stands for."""
    from eagc_ops.training.methods import METHODS

    known = {f.name for method in METHODS.values() for f in fields(method.Config)}
    return resolve(**{name: value for name, value in vars(arguments).items() if name in known})


def _build(cls: type[Config], values: dict[str, Any]) -> Config:
    names = [f.name for f in fields(cls)]
    for name in values:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            raise ConfigError(
                f"{name} is not a setting of {values['method']}"
                + (f"; did you mean {close[0]}?" if close else "")
            )
    return cls(**values)


def _check(f: Field, hint: Any, value: Any) -> None:
    kinds = _kinds(hint)
    if value is None and type(None) in kinds:
        return
    choices = [kind for kind in kinds if isinstance(kind, str)]
    if value in choices:
        return
    kind = kinds[0]
    if kind in choices:
        raise ConfigError(f"{f.name}={value!r}: choose from {', '.join(choices)}")
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{f.name}={value!r}: expected {_kind_name(kinds)}, got {type(value).__name__}")
    if kind is float and math.isinf(value):
        raise ConfigError(f"{f.name}={value!r}: expected a finite number")
    for key, sign, holds in (
        ("at_least", ">=", operator.ge),
        ("above", ">", operator.gt),
        ("below", "<", operator.lt),
    ):
        bound = f.metadata.get(key)
        if bound is not None and not holds(value, bound):
            raise ConfigError(f"{f.name}={value!r}: expected a value {sign} {bound}")


def _kinds(hint: Any) -> tuple:
    """int | Literal["a"] | None -> (int, "a", NoneType); Literal["a", "b"] -> ("a", "b"); float -> (float,)."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds(part))
    return get_args(hint) if get_origin(hint) is Literal else (hint,)


def _kind_name(kinds: tuple) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return " or ".join(names.get(kind, repr(kind)) for kind in kinds)


def _add_option(group: Any, name: str, cls: type[Config], choices: list[str] | None) -> None:
    f = next(f for f in fields(cls) if f.name == name)
    kinds = _kinds(get_type_hints(cls)[name])
    choices = choices or (
        [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds[0], str) else None
    )
    settings: dict[str, Any] = {
        "default": argparse.SUPPRESS,
        "help": f"{f.metadata['help']} [{_defaults(name, f)}]".replace("%", "%%"),
    }
    if kinds[0] is bool:
        settings["action"] = argparse.BooleanOptionalAction
    elif choices:
        settings["choices"] = choices
    else:
        settings["type"] = _reader(kinds)
        settings["metavar"] = {int: "N", float: "X", str: "TEXT"}[kinds[0]]
    if f.metadata.get("words"):
        settings |= {"nargs": "+", "action": _OneText, "metavar": f.metadata["words"]}
    if name == "eagc":
        settings |= {"action": _OnOff, "choices": ("init", "on"), "metavar": "init|on"}
    group.add_argument("--" + name.replace("_", "-"), **settings)


class _OnOff(argparse.BooleanOptionalAction):
    """--eagc and --no-eagc; `--eagc init` and `--eagc on` also say which of SPTNet's two ways is meant (its setting sptnet_eagc)."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        choices, metavar = settings.pop("choices"), settings.pop("metavar")
        super().__init__(*args, **settings)
        self.nargs, self.choices, self.metavar = "?", choices, metavar

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        if values and option == "--no-eagc":
            parser.error(f"--no-eagc takes no value, got {values!r}")
        super().__call__(parser, namespace, values, option)
        if values:
            namespace.sptnet_eagc = values


class _OneText(argparse.Action):
    """The words after the option become one text."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, None if values == [None] else " ".join(map(str, values)))


def _reader(kinds: tuple) -> Any:
    def read(text: str) -> Any:
        if text in kinds:
            return text
        return None if type(None) in kinds and text.lower() == "none" else kinds[0](text)

    read.__name__ = _kind_name(kinds)  # argparse names it: "invalid a number value"
    return read


def _defaults(name: str, f: Field) -> str:
    """The default as --help shows it: one value, or the values that presets and data sets give it."""
    if name in ("method", "preset", "dataset"):
        return f.default
    values = list(dict.fromkeys(getattr(config, name) for config in _all_recipes() if hasattr(config, name)))
    shown = [
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for value in values
    ]
    return shown[0] if len(shown) == 1 else f"by preset and data set: {' | '.join(shown)}"


@functools.cache
def _all_recipes() -> list[Config]:
    from eagc_ops.training.methods import METHODS

    return [
        resolve(method, dataset, preset)
        for method in sorted(METHODS)
        for preset in PRESETS
        for dataset in (*DATASETS, "cub", "scars")
    ]
