"""`eagc estimate-k`."""

from __future__ import annotations

from typing import Any

from eagc_ops.app.console import Parser, command, whole_number
from eagc_ops.app.places import writable_folder
from eagc_ops.training.commands.common import OF_FEATURES, RUNS, config_without_training, list_unreadable
from eagc_ops.training.config import (
    Config,
    add_config_arguments,
    as_options,
    recipe_of,
)
from eagc_ops.training.engine.preconditions import check_run


@command("eagc estimate-k", as_options)
def main(argv: list[str]) -> int:
    """Estimate the number of classes of a data set: the K whose k-means agrees best with the known labels."""
    parser = Parser(prog="eagc estimate-k", description=main.__doc__)
    add_config_arguments(parser, (*OF_FEATURES, "pixel_cache"), recipe_of(argv))
    parser.add_argument(
        "--search", choices=("brent", "bisection"), default="brent", help="how K is searched [brent]"
    )
    parser.add_argument(
        "--largest",
        type=whole_number(),
        metavar="N",
        help="largest K that is tried [1000, or less if there are few images]",
    )
    parser.add_argument(
        "--restarts",
        type=whole_number(),
        metavar="N",
        help="k-means per candidate K, of which the best counts [10, or fewer if there are many images]",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="search as GCD does: each k-means starts afresh, up to K = 1000 (ten times slower and more)",
    )
    settings = vars(parser.parse_args(argv))
    search = {name: settings.pop(name) for name in ("search", "largest", "restarts", "published")}
    list_unreadable(settings, RUNS / f"{recipe_of(argv).dataset}.unreadable.json", _checked)
    config = _checked(settings)
    known = config.spec.known
    if search["largest"] is not None and search["largest"] <= known:
        parser.error(
            f"--largest must be > {known}, the number of known classes of {config.dataset}, "
            f"got {search['largest']}"
        )
    own_encoder = "weights" not in settings and config.backbone == config.spec.own_encoder
    if own_encoder:
        writable_folder("the folder of encoders,", RUNS)

    # Accelerate, timm and scikit-learn take seconds to import: --help and wrong options do not wait for them.
    from eagc_ops.training.analysis.estimate_k import estimate_k
    from eagc_ops.training.engine.experiment import Experiment
    from eagc_ops.training.engine.pretraining import with_encoder
    from eagc_ops.training.models.features import pretrained_features

    experiment = Experiment(with_encoder(config, RUNS) if own_encoder else config)
    known, images = experiment.data.known, experiment.facts.images
    features, label = pretrained_features(experiment.student.encoder, experiment.batches, images, True)
    estimate = estimate_k(features, label, known, **search, seed=config.seed, progress=True)
    for k, accuracy in sorted(estimate.tried.items()):
        print(f"K {k:5}  labelled accuracy {accuracy:.2%}")
    print(f"estimated K: {estimate.k}, of which {known} are known")
    return 0


def _checked(settings: dict[str, Any]) -> Config:
    config = config_without_training(settings)
    check_run(config)
    return config
