"""Estimate the number of classes K, as GCD does: the K whose k-means on all images agrees best with the labels of the labelled ones.

Features are those of the pretrained backbone, and the labelled images are those of the data set's own split (SSB where it has one).
"""

from __future__ import annotations

import argparse
import sys

from eagc_ops.training.analysis import estimate_k as analysis
from eagc_ops.training.analysis.estimate_k import LARGEST, RESTARTS, SEARCHES, all_features
from eagc_ops.training.commands.cli import RUNS
from eagc_ops.training.config import ConfigError, add_config_arguments, config_from_arguments

SETTINGS = ("dataset", "root", "split_file", "image_size", "backbone", "weights", "seed", "device", "workers")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="eagc estimate-k", description=__doc__)
    add_config_arguments(parser, SETTINGS)
    parser.add_argument(
        "--search", choices=tuple(SEARCHES), default="brent", help="how K is searched [brent]"
    )
    parser.add_argument("--largest", type=int, default=LARGEST, metavar="N", help=f"largest K [{LARGEST}]")
    parser.add_argument(
        "--restarts", type=int, default=RESTARTS, metavar="N", help=f"restarts of every k-means [{RESTARTS}]"
    )
    arguments = parser.parse_args(argv)
    from eagc_ops.training.engine.experiment import Experiment
    from eagc_ops.training.engine.pretraining import with_encoder

    try:
        config = config_from_arguments(
            argparse.Namespace(**vars(arguments), batch_size=2)
        )  # not used, but must fit a small data set
        experiment = Experiment(config if hasattr(arguments, "weights") else with_encoder(config, RUNS))
        features, label = all_features(experiment.student.encoder, experiment.batches)
        estimate = analysis.estimate_k(
            features,
            label,
            experiment.data.known,
            search=arguments.search,
            largest=arguments.largest,
            restarts=arguments.restarts,
            progress=True,
        )
    except (ConfigError, ValueError, OSError) as error:
        print(f"eagc estimate-k: {error}", file=sys.stderr)
        return 2
    for k in sorted(estimate.tried):
        print(f"K {k:5}  labelled accuracy {estimate.tried[k]:.2%}")
    print(f"estimated K: {estimate.k}, of which {experiment.data.known} are known")
    return 0
