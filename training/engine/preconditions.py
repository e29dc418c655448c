"""What can be known of a run from its settings, its folders and the headers of files.

It is checked here before anything slow starts. Nothing here needs torch, so the commands check it before they
import it; `runs` checks it again for callers in Python. What depends on the data themselves is checked by
`Experiment`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from eagc_ops.app.places import PlaceError, readable_file, writable_folder
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.config.backbones import BACKBONES, published_channels
from eagc_ops.training.config.datasets import channels_of
from eagc_ops.training.config.places import check_inflated, check_root, check_split_file
from eagc_ops.training.engine.run_folder import RunFolder, is_unused
from eagc_ops.training.models.hub import check_published

__all__ = ["changed", "check_new_folder", "check_run", "starting_checkpoint"]

_LARGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors format


def check_run(
    config: Config,
    output: Path | None = None,
    *,
    labelled_alone: bool = False,
    beforehand: Collection[str] = (),
) -> None:
    """Check the settings of a run against published facts, and the places that they name.

    `output`: the folder of a new run; None for a run that exists. `labelled_alone`: as for
    `check_split_file`. `beforehand`: as for `check_new_folder`.
    """
    config.check_sizes(config.published_sizes())
    if config.precision == "fp16" and config.device == "cpu":
        raise ConfigError(
            "precision='fp16' needs a GPU, but this run has device='cpu'; choose 'no' or 'bf16'"
        )
    _check_channels(config)
    check_root(config.dataset, config.root)
    check_split_file(config.dataset, config.split_file, labelled_alone=labelled_alone)
    if config.skip_unreadable is not None:
        readable_file(
            "skip_unreadable",
            Path(config.skip_unreadable).expanduser(),
            "name a list that `eagc data verify -o FILE` wrote",
        )
    if config.weights not in ("pretrained", "random"):
        _check_weights(Path(config.weights))
    if config.pixel_cache not in ("auto", "off"):
        writable_folder("pixel_cache", Path(config.pixel_cache))
    if config.trunk_cache is not None:
        _check_trunk_cache(Path(config.trunk_cache))
    if config.needs_start is not None and output is not None:
        starting_checkpoint(config)
    if output is not None:
        check_new_folder(output, beforehand)
    # Last, as it may ask the hub. timm knows where the weights of other backbones are.
    backbone = BACKBONES.get(config.backbone)
    if config.weights == "pretrained" and backbone and (backbone.timm_name or backbone.package):
        check_published(config.backbone)


def check_new_folder(output: Path, beforehand: Collection[str] = ()) -> None:
    """Check that a new run can be made in `output`: an empty or half-made one, or none yet.

    `beforehand`: names of files and folders that may lie in it already, because the run will read them.
    """
    if output.is_dir() and not is_unused(output, beforehand):
        run = f"resume the run in it (--resume {output}), or " if (output / "run.json").exists() else ""
        raise ConfigError(f"output {output} is not an empty folder: {run}choose a different one", "output")
    writable_folder("output", output)


def starting_checkpoint(config: Config) -> Path:
    """The checkpoint that the run starts from: the file `init`, or that of the headline epoch of a folder.

    The run must be complete and have the same data set. Only the file's header is read.
    """
    init: str | None = getattr(config, "init", None)  # of the methods that need a start
    if init is None:
        raise ConfigError(f"init is missing: {config.needs_start}", "init")
    path = Path(init)
    if not path.exists():
        raise ConfigError(f"init {init} does not exist: {config.needs_start}", "init")
    if path.is_dir():
        folder = RunFolder.open(path, what="init")
        if folder.result() is None:
            raise ConfigError(
                f"init {init} is not a complete run: resume it first, or name one of its checkpoints", "init"
            )
        path = folder.best if folder.config.headline == "best" else folder.last
    readable_file("init", path, str(config.needs_start))
    recipe = _recipe_in_header(path)
    if recipe.get("dataset", config.dataset) != config.dataset:
        raise ConfigError(
            f"init {init} was trained on {recipe['dataset']}, but this run has dataset={config.dataset!r}: "
            "start from a run on the same data",
            "init",
        )
    return path


def changed(config: Config, changes: dict[str, Any]) -> Config:
    """The configuration of an existing run with `changes`, which must not affect its numbers."""
    unknown = [name for name in changes if name not in config.help_texts()]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)} is not a setting of {config.method}", *unknown)
    free = config.machine_settings()
    fixed = [name for name, value in changes.items() if name not in free and value != getattr(config, name)]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)} cannot change in an existing run (only {', '.join(free)} can): "
            "start a new run",
            *fixed,
            *free,
        )
    return config.replace(**changes)


def _check_channels(config: Config) -> None:
    """Refuse published weights that take images of other channels; those of a file are compared as it loads.

    Whether a backbone that is not listed exists, only timm knows, and it is asked later.
    """
    if config.backbone not in BACKBONES and config.channels is None:
        return
    channels, takes = channels_of(config.dataset, config.channels), published_channels(config.backbone)
    if config.weights != "pretrained" or channels == takes:
        return
    if config.spec.bundled:
        remedy = "choose weights='random', or name a file"
    elif takes == 1:
        remedy = "read the images in grey with channels=1, or name weights for 3 channels"
    else:
        remedy = "leave channels=1 out (grey files are then read as RGB), or name weights for 1 channel"
    raise ConfigError(
        f"weights='pretrained': those of {config.backbone} take {takes}-channel images, not "
        f"{channels}-channel ones; {remedy}"
    )


def _check_trunk_cache(folder: Path) -> None:
    """Refuse a folder of something else, as of a run, among whose files those of the cache would lie."""
    writable_folder("trunk_cache", folder)
    if folder.is_dir() and not is_unused(folder) and not (folder / "cache.json").exists():
        raise ConfigError(
            f"trunk_cache {folder} holds other files, but no trunk cache; name a new or an empty folder",
            "trunk_cache",
        )


def _check_weights(file: Path) -> None:
    """Check that a weight file is whole, by the header of a .safetensors and the directory of a .pth."""
    readable_file("weights", file, "name a .pth or .safetensors file, pretrained or random")
    if file.suffix == ".safetensors":
        try:
            _header(file)
        except ValueError as error:
            raise PlaceError(
                f"weights {file}: cannot be read, perhaps an incomplete download ({error})", "weights"
            ) from error
        return
    with file.open("rb") as opened:
        is_zip = opened.read(2) == b"PK"
    try:
        if is_zip:
            check_inflated(file)
    except zipfile.BadZipFile as error:
        raise PlaceError(
            f"weights {file}: cannot be read, perhaps an incomplete download (it ends too early)", "weights"
        ) from error


def _recipe_in_header(file: Path) -> dict[str, Any]:
    """The settings of the run that wrote a checkpoint; {} if the header has none: loading it will say why."""
    try:
        recipe = json.loads(_header(file)["__metadata__"]["state"])["identity"]
    except (ValueError, KeyError, TypeError):
        return {}
    return recipe if isinstance(recipe, dict) else {}


def _header(file: Path) -> dict[str, Any]:
    """The header of a .safetensors file, which must be as long as its header says.

    safetensors itself would do, but imports numpy.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > min(size - 8, _LARGEST_HEADER):
            raise ValueError("it is not a .safetensors file, or ends too early")
        header = json.loads(opened.read(length))
    try:
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError("its header is not that of a .safetensors file") from error
    if max(ends, default=0) != size - 8 - length:
        raise ValueError(
            f"it has {size - 8 - length} bytes of tensors, its header says {max(ends, default=0)}"
        )
    return header
