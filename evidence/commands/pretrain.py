"""`eagc pretrain`."""

from __future__ import annotations

from pathlib import Path

from eagc_ops.app.console import Parser, command, path, whole_number
from eagc_ops.app.places import writable_file
from eagc_ops.training.commands.common import config_without_training
from eagc_ops.training.config import (
    SPECS,
    Config,
    ConfigError,
    add_config_arguments,
    as_options,
    recipe_of,
)
from eagc_ops.training.config.places import check_root

SETTINGS = ("dataset", "root", "image_size", "channels")


@command("eagc pretrain", as_options)
def main(argv: list[str]) -> int:
    """Pretrain a small encoder on a data set, without labels or with labels of other classes."""
    parser = Parser(prog="eagc pretrain", description=main.__doc__)
    parser.add_argument(
        "-o", "--output", type=path, required=True, metavar="FILE", help="weights to write (.safetensors)"
    )
    add_config_arguments(parser, SETTINGS, recipe_of(argv))
    parser.add_argument(
        "--backbone", metavar="VIT", help="encoder to pretrain [the data set's own; vit_glyphs]"
    )
    parser.add_argument(
        "--labels",
        action="store_true",
        help="learn from labels of other classes: glyphs has extra characters for this; a folder must "
        "have other classes than those you want to discover",
    )
    parser.add_argument(
        "--epochs", type=whole_number(), default=10, metavar="N", help="passes over the images [10]"
    )
    parser.add_argument("--half", action="store_true", help="store half precision")
    settings = vars(parser.parse_args(argv))
    output, labels, epochs, half = (settings.pop(name) for name in ("output", "labels", "epochs", "half"))
    if settings["backbone"] is None:
        settings["backbone"] = SPECS[recipe_of(argv).dataset].own_encoder or "vit_glyphs"
    config = config_without_training(settings)
    config.check_sizes(config.published_sizes())
    check_root(config.dataset, config.root, "--root")
    if labels and config.dataset not in ("glyphs", "folder"):
        raise ConfigError(
            f"--labels: those of {config.dataset} are what a run must discover; pretrain without them, or on "
            "a folder of other classes (dataset='folder')"
        )
    _check_output(output)

    # torch and timm take seconds to import: --help and wrong options do not wait for them.
    from eagc_ops.evidence.new_encoder import Order, new_encoder

    order = Order(
        config.dataset,
        config.root,
        labels,
        config.backbone,
        config.image_size,
        epochs,
        half,
        config.channels,
    )
    record = new_encoder(output, order)
    for name, quality in record["k-NN"].items():
        measured = f"{quality['accuracy']:.1%} (raw pixels {quality['raw_accuracy']:.1%})"
        print(f"{record['neighbours']}-NN accuracy of {name}: {measured}")
    print(f"weights: {output}    ({_training(config, output)})")
    return 0


def _training(config: Config, weights: Path) -> str:
    """A command that trains with the encoder."""
    spec = config.spec
    values = {
        "--dataset": config.dataset,
        "--root": None if spec.bundled else "FOLDER",
        "--split-file": "FILE" if spec.needs_split_file else None,
        "--image-size": config.image_size,
        "--channels": config.channels,
        "--backbone": config.backbone,
        "--weights": weights,
    }
    return " ".join(
        ["eagc train", *(f"{name} {value}" for name, value in values.items() if value is not None)]
    )


def _check_output(output: Path) -> None:
    if output.suffix != ".safetensors":
        raise ConfigError(f"output {output} must end in .safetensors", "output")
    for file in (output, output.with_suffix(".json")):
        if file.exists():
            raise ConfigError(f"output {file} exists: delete it, or choose a different name", "output")
    writable_file("--output", output)
