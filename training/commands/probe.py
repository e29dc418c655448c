"""`eagc probe`."""

from __future__ import annotations

import argparse

from eagc_ops.console import Parser, command, path, whole_number
from eagc_ops.places import writable_file, writable_folder
from eagc_ops.training.commands.common import RUNS
from eagc_ops.training.config import add_config_arguments, as_options, config_from_arguments, recipe_of
from eagc_ops.training.engine.preconditions import check_run

FEATURES = RUNS / "features"
SETTINGS = (
    "dataset",
    "preset",
    "root",
    "split_file",
    "skip_unreadable",
    "glyphs",
    "image_size",
    "channels",
    "backbone",
    "weights",
    "lambda_a",
    "lambda_p",
    "seed",
    "device",
    "workers",
)


@command("eagc probe", as_options)
def main(argv: list[str]) -> int:
    """Say before a run whether EAGC can act: some known classes play novel, and energies must tell."""
    parser = Parser(
        prog="eagc probe",
        description=main.__doc__,
        epilog=f"Features of the pretrained encoder are computed once and kept in {FEATURES}.",
    )
    add_config_arguments(parser, SETTINGS, recipe_of(argv))
    parser.add_argument(
        "--choices",
        type=whole_number(most=1000),
        default=10,
        metavar="N",
        help="random choices of the classes that play novel [10]",
    )
    parser.add_argument(
        "--energies",
        action="store_true",
        help="also rank other energies; takes the unlabelled images too",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=path,
        metavar="FILE",
        help="write the probe as JSON; eagc report shows it if it is probe.json in a run folder",
    )
    settings = vars(parser.parse_args(argv))
    choices, energies, output = (settings.pop(name) for name in ("choices", "energies", "output"))
    # The batch size is not used, but it must fit a small data set.
    config = config_from_arguments(argparse.Namespace(**settings, batch_size=2))
    labelled_alone = not energies  # other energies are those of unlabelled images too
    check_run(config, labelled_alone=labelled_alone)
    if output is not None:
        writable_file("--output", output)
    writable_folder("the folder of features,", FEATURES)

    # Accelerate, timm and scikit-learn take seconds to import: --help and wrong options do not wait for them.
    from eagc_ops.training.analysis.probe import probe
    from eagc_ops.training.engine.experiment import Experiment
    from eagc_ops.training.engine.frozen_features import frozen_features
    from eagc_ops.training.engine.pretraining import with_encoder
    from eagc_ops.training.report.probe import energies_text, probe_text, write_probe

    config = config if "weights" in settings else with_encoder(config, RUNS)
    experiment = Experiment(config, labelled_alone=labelled_alone)
    z, label = frozen_features(experiment, FEATURES, unlabelled=energies, progress=True)
    labelled = label >= 0
    found = probe(
        z[labelled],
        label[labelled],
        choices=choices,
        lambda_a=config.lambda_a,
        lambda_p=config.lambda_p,
        seed=config.seed,
    )
    print(probe_text(found))
    if energies:
        from eagc_ops.training.analysis.energies import rank_energies

        ranked = rank_energies(z[labelled], label[labelled], z[~labelled], choices=choices, seed=config.seed)
        print(f"\n{energies_text(ranked)}")
    if config.dataset == "folder":
        print(
            f"whether that raises the accuracy, only runs can show: eagc study --root {config.root} --dry-run"
        )
    if output is not None:
        write_probe(output, found)
        print(f"\nprobe: {output}")
    return 0
