"""`eagc probe`."""

from __future__ import annotations

from typing import Any

from eagc_ops.app.console import Parser, command, path, whole_number
from eagc_ops.app.places import writable_file, writable_folder
from eagc_ops.training.commands.common import OF_FEATURES, RUNS, config_without_training, list_unreadable
from eagc_ops.training.config import (
    Config,
    add_config_arguments,
    as_options,
    recipe_of,
)
from eagc_ops.training.engine.preconditions import check_run

FEATURES = RUNS / "features"
SETTINGS = ("preset", "lambda_a", "lambda_p", *OF_FEATURES)


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
    labelled_alone = not energies  # other energies are those of unlabelled images too

    def own_config(settings: dict[str, Any]) -> Config:
        config = config_without_training(settings)
        check_run(config, labelled_alone=labelled_alone)
        return config

    list_unreadable(settings, RUNS / f"{recipe_of(argv).dataset}.unreadable.json", own_config)
    config = own_config(settings)
    if output is not None:
        writable_file("--output", output)
    writable_folder("the folder of features,", FEATURES)

    # Accelerate, timm and scikit-learn take seconds to import: --help and wrong options do not wait for them.
    import torch

    from eagc_ops.evidence.frozen_features import frozen_features
    from eagc_ops.evidence.hidden_classes import checked
    from eagc_ops.evidence.probe_text import energies_text, probe_text, write_probe
    from eagc_ops.evidence.probing import probe
    from eagc_ops.training.engine.experiment import Experiment
    from eagc_ops.training.engine.pretraining import with_encoder

    config = config if "weights" in settings else with_encoder(config, RUNS)
    experiment = Experiment(config, labelled_alone=labelled_alone)
    labels = experiment.data.labelled.labels
    checked(torch.zeros(len(labels), 1), labels, choices)  # before a file of features is written
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
        from eagc_ops.evidence.energies import rank_energies

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
