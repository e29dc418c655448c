"""Wrong command lines: each ends with one line that names the option, and exit code 2, before work starts.

The lines run in this process; some also as processes of their own. `AT_ONCE` are refused before torch, timm
or scikit-learn is imported. `BY_THE_DATA` need the data set or the backbone, but start no pretraining.
"""

import contextlib
import io
import json
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import faults
import pytest
from nursery import without_bars
from photographs import write_photographs
from run_facts import some_facts

from eagc_ops.app.cli import COMMANDS, main
from eagc_ops.bench import commands
from eagc_ops.training.config import resolve
from eagc_ops.training.engine import pretraining
from eagc_ops.training.engine.loop import Loop
from eagc_ops.training.engine.run_folder import RunFolder

pytestmark = pytest.mark.fault("wrong command lines")

# (command line, words of its message). Places are those of `write_places`.
AT_ONCE = [
    # No command, or an unknown one
    ("fly", "unknown command 'fly'; must be one of discover, open, refine"),
    ("training --epochs 3", "unknown command 'training'; did you mean train?"),
    ("discver full run -o out", "unknown command 'discver'; did you mean discover?"),
    ("help discver", "unknown command 'discver'; did you mean discover?"),
    ("--versio", "unknown option --versio; did you mean --version?"),
    ("-x", "unknown option -x; options follow the name of a command"),
    ("completion", "the following arguments are required: SHELL"),
    ("completion ksh", "SHELL: invalid choice: 'ksh'"),
    ("data", "COMMAND is missing; choose one of verify, download"),
    ("data fly", "COMMAND: invalid choice: 'fly' (choose from 'verify', 'download', 'show')"),
    ("bench", "COMMAND is missing; choose one of operator, throughput"),
    ("bench fly", "COMMAND: invalid choice: 'fly'"),
    # Options that do not exist, are cut short, or lack a value
    ("train --bogus", "unknown option --bogus; see eagc train --help"),
    ("train --lamda-p 3", "unknown option --lamda-p; did you mean --lambda-p?"),
    ("train --lambda 3", "unknown option --lambda"),
    ("train --epochs", "--epochs: expected one argument"),
    ("train --epochs --seed 1", "--epochs: expected one argument"),
    ("train digits", "unexpected word 'digits'"),
    ("train --warm-start yes", "--warm-start takes no value, got 'yes'"),
    ("train --no-eagc init", "--no-eagc takes no value, got 'init'"),
    ("train --eagc maybe", "--eagc: invalid choice: 'maybe'"),
    ("evaluate run --epochs 3", "unknown option --epochs"),
    ("report run --which best", "unknown option --which"),
    ("demo --dataset cub", "unknown option --dataset"),
    ("estimate-k --epochs 3", "unknown option --epochs"),
    ("probe --epochs 3", "unknown option --epochs"),
    ("env --jsn", "unknown option --jsn; did you mean --json?"),
    ("selftest --repeat 3", "unknown option --repeat; did you mean --repeats?"),
    ("table main --dataset digits --dry", "unknown option --dry"),
    ("data download", "the following arguments are required: dataset"),
    ("data download mnist", "dataset: invalid choice: 'mnist'"),
    ("data download cifar10", "--root is missing: name a folder to unpack CIFAR-10 in"),
    ("data download cifar10 --root file.txt", "--root file.txt is a file; name a folder"),
    ("data verify --dataset digits --deeep", "unknown option --deeep"),
    ("bench overhead --row 8", "unknown option --row; did you mean --rows?"),
    ("bench loader --rounds 3", "unknown option --rounds"),
    ("bench conceptor --rounds 3", "unknown option --rounds"),
    ("bench operator --quik", "unknown option --quik; did you mean --quick?"),
    ("bench roofline --rows 64", "unknown option --rows"),
    ("bench estimate --seeds 3", "unknown option --seeds"),
    # Values that are no number, or not a whole one
    ("train --epochs many", "--epochs: must be a whole number, got 'many'"),
    ("train --epochs ٣", "--epochs: must be a whole number, got '٣'"),
    ("train --epochs 1_000", "--epochs: must be a whole number, got '1_000'"),
    ("train --lambda-p 1_0.5", "--lambda-p: must be a number, got '1_0.5'"),
    ("demo --seeds 1_0", "--seeds: must be a whole number >= 1, got 1_0"),
    ("demo --seeds ٣", "--seeds: must be a whole number >= 1, got ٣"),
    ("discover full run -o out --holdout ٣.٢", "--holdout: must be a share >= 0 and < 1, got ٣.٢"),
    ("bench throughput --budget 1_0", "--budget: must be a positive number of seconds, got 1_0"),
    ("train --epochs 2.5", "--epochs: must be a whole number, got '2.5'"),
    ("train --lambda-p much", "--lambda-p: must be a number, got 'much'"),
    ("train --lambda-p nan", "--lambda-p must be a finite number, got nan"),
    ("train --head-lr inf", "--head-lr must be a finite number, got inf"),
    ("train --k several", "--k: must be a whole number or 'estimate' or none, got 'several'"),
    ("train --energy-momentum little", "--energy-momentum: must be a number or none, got 'little'"),
    ("train --diagnose-every often", "--diagnose-every: must be a whole number, got 'often'"),
    ("demo --seeds few", "--seeds: must be a whole number >= 1, got few"),
    ("bench throughput --budget much", "--budget: must be a positive number of seconds, got much"),
    # Values out of range
    ("train --epochs 0", "--epochs must be >= 1, got 0"),
    ("train --batch-size 1", "--batch-size must be >= 2, got 1"),
    ("train --lambda-a -1", "--lambda-a must be >= 0, got -1.0"),
    ("train --lambda-p -0.5", "--lambda-p must be >= 0, got -0.5"),
    ("train --aperture 0", "--aperture must be >= 1e-06, got 0.0"),
    ("train --aperture 1e-200", "--aperture must be >= 1e-06, got 1e-200"),
    ("train --epochs 99999999999999999999", "--epochs must be <= 1000000, got 99999999999999999999"),
    ("train --pca-k 0", "--pca-k must be >= 1, got 0"),
    ("train --energy-momentum 1", "--energy-momentum must be < 1, got 1.0"),
    ("train --mlp-head-layers 3", "--mlp-head-layers must be <= 2, got 3"),
    ("train --trainable-blocks 0", "--trainable-blocks must be >= 1, got 0"),
    ("train --reference-blocks 0", "--reference-blocks must be >= 1, got 0"),
    ("train --reference-epochs 0", "--reference-epochs must be >= 1, got 0"),
    ("train --reference-lr 0", "--reference-lr must be > 0, got 0.0"),
    ("train --backbone-lr 0", "--backbone-lr must be > 0, got 0.0"),
    ("train --lr-floor 5", "--lr-floor must be <= 1, got 5.0"),
    ("train --momentum 1", "--momentum must be < 1, got 1.0"),
    ("train --weight-decay -1", "--weight-decay must be >= 0, got -1.0"),
    ("train --seed -1", "--seed must be >= 0, got -1"),
    (
        "train --seed 99999999999999999999999",
        "--seed must be <= 9223372036854775807, got 99999999999999999999999",
    ),
    ("train --cache-views 1", "--cache-views must be >= 2, got 1"),
    ("train --workers -1", "--workers must be >= 0, got -1"),
    ("train --workers 100000", "--workers must be <= 256, got 100000"),
    ("train --log-every 0", "--log-every must be >= 1, got 0"),
    ("train --checkpoint-every -1", "--checkpoint-every must be >= 0, got -1"),
    ("train --diagnose-every 0", "--diagnose-every must be >= 1, got 0"),
    ("train --diagnose-k 0", "--diagnose-k must be >= 1, got 0"),
    ("train --sup-weight 2", "--sup-weight must be <= 1, got 2.0"),
    ("train --student-temp 0", "--student-temp must be > 0, got 0.0"),
    ("train --method legogcd --threshold 2", "--threshold must be <= 1, got 2.0"),
    ("train --method sptnet --prompt-lr 0", "--prompt-lr must be > 0, got 0.0"),
    ("train --method selex --smoothing 1.5", "--smoothing must be <= 1, got 1.5"),
    ("train --method selex --embedding-dim 1", "--embedding-dim must be >= 2, got 1"),
    ("train --method selex --kmeans-iterations 0", "--kmeans-iterations must be >= 1, got 0"),
    ("estimate-k --restarts 0", "--restarts: must be a whole number >= 1, got 0"),
    ("estimate-k --largest 0", "--largest: must be a whole number >= 1, got 0"),
    ("estimate-k --largest 5", "--largest must be > 5, the number of known classes of digits, got 5"),
    ("estimate-k --seed -3", "--seed must be >= 0, got -3"),
    ("study --known 7", "--known: invalid choice: 7 (choose from 10, 5, 20, 50, 100)"),
    ("study --seeds 0", "--seeds: must be a whole number >= 1, got 0"),
    ("waterfall --replicates -1", "--replicates: must be a whole number >= 0, got -1"),
    ("study --methods gcd", "--methods: invalid choice: 'gcd' (choose from 'simgcd', 'legogcd', "),
    ("probe --choices 0", "--choices: must be a whole number >= 1, got 0"),
    ("probe --lambda-p -1", "--lambda-p must be >= 0, got -1.0"),
    ("demo --epochs 0", "--epochs: must be a whole number >= 1, got 0"),
    ("demo --seeds 100000000", "--seeds: must be <= 1,000, got 100000000"),
    ("pretrain -o w.safetensors --epochs -1", "--epochs: must be a whole number >= 1, got -1"),
    ("train --dataset glyphs --glyphs-classes 500", "--glyphs-classes must be <= 200, got 500"),
    (
        "train --dataset glyphs --glyphs-known 60",
        "--glyphs-known must be < 60, the number of classes, got 60",
    ),
    ("train --glyphs-known 5", "--dataset digits does not use the settings of glyphs"),
    ("train --evaluate-every 0", "--evaluate-every must be >= 1, got 0"),
    ("train --projector-width 0", "--projector-width must be >= 1, got 0"),
    ("demo --jobs 0", "--jobs: must be a whole number >= 1, got 0"),
    ("table main --dataset digits --seeds 0", "--seeds: must be a whole number >= 1, got 0"),
    ("table main --dataset digits --seeds 9999999", "--seeds: must be <= 1,000, got 9999999"),
    ("table main --dataset digits --jobs 100000", "--jobs: must be <= 256, got 100000"),
    ("table main --dataset digits --epochs 0", "--epochs: must be a whole number >= 1, got 0"),
    ("selftest --repeats 0", "--repeats: must be a whole number >= 1, got 0"),
    ("selftest --quick --full", "--full: not allowed with argument --quick"),
    ("tune --rows 0", "--rows: must be a whole number >= 1, got 0"),
    ("tune --dtype fp8", "--dtype: invalid choice: 'fp8'"),
    ("tune --precision tf32", "--precision tf32 is for --dtype fp32, not bf16"),
    ("tune --device cpu", "--device cpu is no GPU; choose cuda, cuda:0, ..."),
    ("selftest --device toaster", "--device toaster is unknown; choose one of cpu, cuda"),
    ("bench overhead --rows 6", "--rows: must be a positive multiple of 4, got 6"),
    ("bench overhead --rounds 0", "--rounds: must be a whole number >= 1, got 0"),
    ("bench overhead --backbone resnet50", "--backbone: invalid choice: 'resnet50'"),
    ("bench throughput --rows 2", "--rows: must be a whole number >= 4, got 2"),
    ("bench throughput --dims 99999999999999999999", "must be <= 1,000,000, got 99999999999999999999\n"),
    ("bench throughput --dtypes fp8", "--dtypes: invalid choice: 'fp8'"),
    ("bench aot --jobs 0", "--jobs: must be a whole number >= 1, got 0"),
    ("bench host --rounds 3", "unknown option --rounds"),
    (
        "bench compare a.json b.json --threshold 7",
        "--threshold: must be a share above 0 and at most 1, got 7",
    ),
    # Words that are none of the choices
    ("train --method magic", "--method: invalid choice: 'magic'"),
    ("train --dataset birds", "--dataset: invalid choice: 'birds' (choose from 'cifar10'"),
    ("train --preset best", "--preset: invalid choice: 'best'"),
    ("train --anchor median", "--anchor: invalid choice: 'median'"),
    ("train --device gpu", "--device: invalid choice: 'gpu'"),
    ("evaluate run --which first", "--which: invalid choice: 'first'"),
    ("table ablations --dataset digits", "NAME: invalid choice: 'ablations'"),
    ("table main --dataset digits --preset baseline", "--preset: invalid choice: 'baseline'"),
    ("estimate-k --search random", "--search: invalid choice: 'random'"),
    ("data verify --dataset birds", "--dataset: invalid choice: 'birds'"),
    ("bench overhead --dataset birds", "--dataset: invalid choice: 'birds'"),
    # Values that do not fit the data set, the backbone or one another
    ("train --k 3", "--k must be >= 5, the number of known classes, got 3"),
    ("train --k 100000", "--k must be <= 1,797, the number of images, got 100000"),
    ("train --batch-size 5000", "--batch-size 5000 is larger than the 1797 images of an epoch"),
    ("train --accumulation 3", "--accumulation 3 does not divide --batch-size 128"),
    ("train --accumulation 128", "--accumulation 128 leaves 1 image of --batch-size 128 in a micro-batch"),
    (
        "train --lr-floor 0.5 --head-lr 1",
        "--lr-floor 0.5 x --head-lr 1 is more than --backbone-lr 0.1: the encoder's learning rate would rise",
    ),
    (
        "train --image-size 30",
        "--image-size must be a multiple of 4 for vit_digits, got 30; the nearest is 32",
    ),
    ("train --image-size 100000", "--image-size must be <= 4096, got 100000"),
    ("train --trainable-blocks 9", "--trainable-blocks must be <= 4, the blocks of vit_digits, got 9"),
    ("train --subspace pca --pca-k 97", "--pca-k must be <= 96 with 450 labelled images and D=96, got 97"),
    ("train --alignment gram --no-eagc", "--alignment gram replaces the anchor term of EAGC"),
    ("train --alignment gram --anchor sum", "--anchor sum: --alignment gram replaces the anchor term"),
    ("train --diagnose --accumulation 2", "--accumulation 2: the diagnosis compares gradients"),
    ("train --precision fp16 --device cpu", "--precision fp16 needs a GPU"),
    ("train --embedding-dim 8", "--embedding-dim is not a setting of simgcd"),
    ("train --method sptnet --trunk-cache x", "--trunk-cache x: the prompts of SPTNet change"),
    ("train --method sptnet --warm-start", "--warm-start: SPTNet starts from a SimGCD run"),
    ("train --method sptnet --pad-width 8", "--pad-width must be < 8, half the image size, got 8"),
    ("train --method sptnet --phase-batches 15", "--phase-batches must be <= 14, the batches of an epoch"),
    ("table main --dataset digits --backbone x", "--backbone x is for overhead only"),
    ("table hyper --dataset digits --null", "--null: the table hyper has no null runs; leave it out"),
    ("table main", "--dataset is missing: the paper has cub"),
    ("table overhead --seeds 2", "--seeds is for training, but overhead is measured"),
    ("report run --device cpu", "--device is for --pictures"),
    ("bench overhead --root full", "--root full needs --dataset"),
    # Places: missing, of the wrong kind, not to be written, empty
    ("train -o file.txt", "--output file.txt is a file; name a folder"),
    ("train -o file.txt/run", "--output file.txt/run cannot be written: "),
    ("train -o full", "--output full is not an empty folder: choose a different one"),
    ("train -o .", "--output . is not an empty folder: choose a different one"),
    ("train -o /proc/eagc/run", "--output /proc/eagc/run cannot be written in /"),
    ("train -o ''", "-o/--output: is empty: name a path, or leave the option out"),
    ("train -o broken-link", "--output broken-link is a broken link; name a folder"),
    (
        "train -o run --epochs 3",
        "--output run holds a run of other settings (epochs 20 there, 3 here): go on with it by eagc train "
        "--resume run, or choose a different folder",
    ),
    ("train -o loop", "--output loop is a loop of links; name a folder"),
    ("train -o loop/run", "--output loop/run cannot be written: "),
    ("discover full run -o loop", "--output loop is a loop of links; name a folder"),
    ("discover loop run -o out", "labelled folder loop is a loop of links, not a folder"),
    ("report run -o loop", "--output loop is a loop of links; name a folder"),
    ("train --weights loop", "--weights loop is a loop of links, not a file"),
    ("train --weights bomb.pt", "--weights bomb.pt: refused, as its "),
    ("train --resume run -o other", "--resume run continues in the folder of the run: leave --output out"),
    ("train --resume nowhere", "--resume nowhere is not a run folder: it does not exist"),
    ("train --resume file.txt", "--resume file.txt is not a run folder: it is a file"),
    ("train --resume full", "--resume full is not a run folder: it has no run.json"),
    ("train --resume torn", "--resume torn: run.json cannot be read"),
    ("train --resume run --epochs 7", "--epochs cannot change in an existing run (only --root, --split-file"),
    ("train --resume complete --lambda-p 2", "--lambda-p cannot change in an existing run"),
    ("train --resume run --trunk-cache file.txt", "--trunk-cache file.txt is a file; name a folder"),
    ("train --trunk-cache file.txt", "--trunk-cache file.txt is a file; name a folder"),
    ("train --trunk-cache full", "--trunk-cache full holds other files, but no trunk cache; name a new or"),
    ("train --trunk-cache run", "--trunk-cache run holds other files, but no trunk cache; name a new or"),
    ("train --trunk-cache file.txt/x", "--trunk-cache file.txt/x cannot be written: "),
    ("train --weights nowhere.pth", "--weights nowhere.pth: no such file"),
    ("train --weights full", "--weights full is a folder, not a file"),
    ("train --weights empty.json", "--weights empty.json is empty (0 bytes)"),
    ("train --weights cut.safetensors", "--weights cut.safetensors: cannot be read, perhaps an incomplete"),
    ("train --weights cut.pth", "--weights cut.pth: cannot be read, perhaps an incomplete download"),
    ("train --pixel-cache ''", "--pixel-cache is empty: name a path, or leave it out"),
    ("train --pixel-cache file.txt", "--pixel-cache file.txt is a file; name a folder"),
    ("train --weights none", "--weights none: no such file; name a .pth or .safetensors file, pretrained or"),
    ("train --weights pretrained", "--weights pretrained: no weights of vit_digits are published"),
    ("train --channels 2", "--channels: must be 1 or 3 or none, got '2'"),
    ("train --dataset digits --channels 3", "--channels 3: images of digits have 1; leave it out"),
    (
        "train --dataset cifar10 --root full --channels 1",
        "--weights pretrained: those of dino_vitb16 take 3-channel images, not 1-channel ones; leave "
        "--channels 1 out (grey files are then read as RGB)",
    ),
    (
        "train --dataset cifar10 --root full --backbone vit_glyphs --image-size 32",
        "those of vit_glyphs take 1-channel images, not 3-channel ones; read the images in grey with "
        "--channels 1",
    ),
    ("train --dataset cifar10 --root full", "--weights pretrained: those of dino_vitb16 are not in the hub"),
    ("train --weights ''", "--weights is empty: name a path, or leave it out"),
    ("train --root full", "--root full: digits come with scikit-learn and have no root; leave it out"),
    ("train --split-file split.json", "--split-file split.json: the class split of digits is a formula"),
    ("train --dataset cub", "--root is missing: CUB-200-2011 needs a folder with images/"),
    ("train --dataset cub --root nowhere", "--root nowhere is not a folder: it does not exist"),
    ("train --dataset cub --root file.txt", "--root file.txt is a file, not a folder"),
    ("train --dataset cub --root ''", "--root is empty: name a path, or leave it out"),
    ("train --dataset cub --root full", "--split-file is missing: CUB-200-2011 needs cub_osr_splits.pkl"),
    (
        "train --dataset cub --root full --split-file nope.json",
        "--split-file nope.json: no such file; CUB-200-2011 needs cub_osr_splits.pkl",
    ),
    ("train --dataset cub --root full --split-file full", "--split-file full is a folder, not a file"),
    (
        "train --dataset cub --root full --split-file file.txt",
        "--split-file file.txt must end in .pkl, .json",
    ),
    (
        "train --dataset folder --root full --split-file empty.json",
        "--split-file empty.json is empty (0 bytes)",
    ),
    ("train --method sptnet", "--init is missing: SPTNet starts from a trained SimGCD"),
    ("train --method sptnet --init nowhere", "--init nowhere does not exist: SPTNet starts from"),
    ("train --method sptnet --init full", "--init full is not a run folder: it has no run.json"),
    ("train --method sptnet --init run", "--init run is not a complete run: resume it first"),
    ("train --method sptnet --init empty.json", "--init empty.json is empty (0 bytes)"),
    (
        "train --method sptnet --init birds.safetensors",
        "--init birds.safetensors was trained on cub, but this run has --dataset digits",
    ),
    ("evaluate", "the following arguments are required: RUN"),
    ("evaluate nowhere", "RUN nowhere is not a run folder: it does not exist"),
    ("evaluate run", "--which last: run/last.safetensors: no such file; go on with it first, by eagc train"),
    ("evaluate complete", "--which last: complete/last.safetensors: no such file; restore a copy"),
    ("evaluate run --root full", "--root full: digits come with scikit-learn and have no root"),
    ("open", "the following arguments are required: FOUND"),
    ("open nowhere", "FOUND nowhere/categories.json: no such file; name the output folder of a complete"),
    ("open nowhere --port 70000", "--port: must be a number from 0 to 65535, got 70000"),
    ("refine", "the following arguments are required: FOUND, EDITS"),
    ("refine nowhere edits.json", "FOUND nowhere/categories.json: no such file; name the output folder"),
    ("bench refine", "the following arguments are required: --data"),
    ("bench refine --data nowhere --draws 0", "--draws: must be a whole number >= 1, got 0"),
    ("bench discover", "the following arguments are required: --data"),
    ("bench scale --bogus", "unknown option --bogus; see eagc bench scale --help"),
    ("discover", "the following arguments are required: LABELLED, UNLABELLED, -o/--output"),
    ("discover full run", "the following arguments are required: -o/--output"),
    ("discover nowhere run -o out", "labelled folder nowhere is not a folder: it does not exist"),
    ("discover file.txt run -o out", "labelled folder file.txt is a file, not a folder"),
    ("discover full nowhere -o out", "unlabelled images nowhere is not a folder: it does not exist"),
    ("discover full empty.json -o out", "unlabelled images empty.json is empty (0 bytes)"),
    ("discover full full -o out", "unlabelled images full: this is the labelled folder"),
    ("discover full . -o out", "labelled folder full lies inside of unlabelled images ."),
    ("discover . full -o out", "unlabelled images full lies inside of labelled folder ."),
    ("discover full run -o full/out", "--output full/out lies inside of your images full"),
    ("discover full run -o file.txt", "--output file.txt is a file; name a folder"),
    ("discover full run -o torn", "torn: run.json cannot be read"),
    ("discover full torn -o complete", "--output complete holds a run on digits: choose a different folder"),
    ("discover full run -o out --holdout 1", "--holdout: must be a share >= 0 and < 1, got 1"),
    ("discover full run -o out --holdout some", "--holdout: must be a share >= 0 and < 1, got some"),
    ("discover full run -o out --truth nowhere.csv", "--truth nowhere.csv: no such file"),
    (
        "discover full run -o out --sort-into torn",
        "--sort-into torn is not empty, and was not made for links",
    ),
    ("discover full run -o out --sort-into out", "--sort-into out is the output folder, or holds it; name a"),
    (
        "discover full run -o out/a --sort-into out",
        "--sort-into out is the output folder, or holds it; name a",
    ),
    ("discover full run -o out --sort-into full/x", "--sort-into full/x lies inside of your images full"),
    ("discover full run -o out --sort-into file.txt", "--sort-into file.txt is a file; name a folder"),
    ("discover full run -o out --dataset cub", "unknown option --dataset"),
    ("discover full run -o out --k 0", "--k must be >= 1, got 0"),
    ("discover full run -o out --weights nowhere.pth", "--weights nowhere.pth: no such file"),
    ("discover full run -o out --method sptnet", "--init is missing: SPTNet starts from a trained SimGCD"),
    ("train --dataset discover", "--dataset: invalid choice: 'discover'"),
    ("predict", "the following arguments are required: RUN, IMAGES"),
    ("predict complete", "the following arguments are required: IMAGES"),
    ("predict nowhere file.txt", "nowhere is not a run folder"),
    ("predict run file.txt", "run is not a complete run: go on with it first, by eagc train --resume run"),
    ("predict complete nope.jpg", "IMAGES nope.jpg: no such file or folder"),
    ("predict complete @nope.txt", "IMAGES nope.txt: no such file"),
    ("predict complete file.txt -o full", "--output full is a folder; pass the name of a file"),
    ("predict complete file.txt", "complete/last.safetensors: no such file"),
    ("predict complete file.txt --epochs 3", "unknown option --epochs"),
    ("export complete", "the following arguments are required: -o/--output"),
    ("export complete -o model.onnx", "--output must end in .pt2"),
    ("export run -o model.pt2", "run is not a complete run: go on with it first, by eagc train --resume run"),
    ("export complete -o file.txt/model.pt2", "--output file.txt/model.pt2 cannot be written: "),
    ("report", "the following arguments are required: RUN"),
    ("report nowhere", "RUN nowhere is not a run folder: it does not exist"),
    ("report run -o file.txt", "--output file.txt is a file; name a folder"),
    ("demo -o file.txt", "--output file.txt is a file; name a folder"),
    ("demo -o /proc/eagc", "--output /proc/eagc cannot be written in /proc"),
    ("table main --dataset digits -o file.txt", "--output file.txt is a file; name a folder"),
    ("table main --dataset digits -o file.txt --dry-run", "--output file.txt is a file; name a folder"),
    ("table main --dataset cub", "CUB-200-2011 with dino_vitb16 needs --root"),
    ("table main --dataset digits --weights nowhere.pth", "--weights nowhere.pth: no such file"),
    ("table overhead -o file.txt", "--output file.txt is a file; name a folder"),
    ("table overhead --dataset cub --root nowhere", "--root nowhere is not a folder"),
    ("pretrain", "the following arguments are required: -o/--output"),
    ("pretrain -o weights", "--output weights must end in .safetensors"),
    ("pretrain -o w.safetensors --dataset digits --labels", "--labels: those of digits are what a run must"),
    ("pretrain -o w.safetensors --dataset folder", "--root is missing: image folder needs a folder"),
    ("data show --dataset digits -o picture.gif", "--output picture.gif must end in .png"),
    ("estimate-k --weights nowhere.pth", "--weights nowhere.pth: no such file"),
    ("estimate-k --dataset cub --root nowhere", "--root nowhere is not a folder"),
    ("probe --weights nowhere.pth", "--weights nowhere.pth: no such file"),
    ("probe --dataset cub --root nowhere", "--root nowhere is not a folder"),
    ("study -o file.txt", "--output file.txt is a file; name a folder"),
    ("probe -o full", "--output full is a folder; pass the name of a file"),
    ("data verify", "the following arguments are required: --dataset"),
    ("data verify --dataset cub", "--root is missing: CUB-200-2011 needs a folder"),
    ("data verify --dataset cub --root file.txt", "--root file.txt is a file, not a folder"),
    ("data verify --dataset cub --root full --split-file no.pkl", "--split-file no.pkl: no such file"),
    ("data verify --dataset digits -o full", "--output full is a folder; pass the name of a file"),
    ("data verify --dataset digits --skip-unreadable bad.json", "unknown option --skip-unreadable"),
    (
        "train --dataset folder --root photos/labelled --skip-unreadable -o out",
        "--split-file is missing: image folder needs",
    ),
    (
        "estimate-k --dataset folder --root photos/labelled --split-file nope.json --skip-unreadable",
        "--split-file nope.json: no such file",
    ),
    (
        "probe --dataset folder --root photos/labelled --split-file nope.json --skip-unreadable",
        "--split-file nope.json: no such file",
    ),
    ("table main --dataset cub --root photos --skip-unreadable -o out", "needs --split-file"),
    ("train --skip-unreadable nowhere.json", "--skip-unreadable nowhere.json: no such file"),
    ("estimate-k --skip-unreadable nowhere.json", "--skip-unreadable nowhere.json: no such file"),
    ("bench throughput -o full", "--output full is a folder; pass the name of a file"),
    ("bench throughput -o file.txt/r.json", "--output file.txt/r.json cannot be written: "),
    ("bench all -o file.txt", "--output file.txt is a file; name a folder"),
    ("bench overhead --picture x.pdf", "--picture: must be a file name that ends in .svg or .png, got x.pdf"),
    ("bench overhead --dataset cub --root nowhere", "--root nowhere is not a folder"),
    ("bench compare nowhere.json file.txt", "A.json nowhere.json: no such file"),
]

BY_THE_DATA = [
    ("train --backbone mobilenetv3_small_100", "--backbone 'mobilenetv3_small_100'"),
    ("train --backbone no_such_package:net", "--backbone 'no_such_package:net' cannot be imported"),
    ("train --backbone ..:x", "--backbone '..:x' cannot be imported ("),
    (
        "train --backbone raising:net",
        "--backbone 'raising:net' failed: its factory raised, at --image-size 16 and --channels 1, KeyE",
    ),
    ("train --backbone raising:none", "--backbone 'raising:none' cannot be imported ("),
    (
        "discover photos/labelled photos/new -o out --k 2 --backbone vit_digits --weights random",
        "--k must be >= 3",
    ),
    (
        "study --root photos/labelled -o out --backbone vit_digits --weights random",
        "--root photos/labelled has 3 class folders: a study needs ",
    ),
    (
        "waterfall --root photos/labelled -o out --backbone vit_digits --weights random --skip-unreadable",
        "--batch-size 128 is larger than the 24 images of an epoch",
    ),
    (
        "probe --dataset folder --root photos/labelled --split-file two.json --backbone vit_digits --weights "
        "random",
        "labels must have at least 3 known classes, got 2",
    ),
    ("train --dataset digits --flip", "--flip: a mirrored digit is another one, or none"),
    ("train --backbone vit_nonesuch", "--backbone 'vit_nonesuch' is unknown; close names: "),
    (
        "train --backbone vit_tiny_patch16_224 --image-size 40",
        "--image-size must be a multiple of 16 for vit_tiny_patch16_224, got 40; the nearest is 32",
    ),
    ("train --method selex --embedding-dim 2", "--embedding-dim must be >= "),
    ("train --method sptnet --init torn.safetensors", "torn.safetensors is damaged or not a checkpoint"),
    ("train --precision fp16", "--precision fp16 needs a GPU"),
    ("train --weights text.pth", "--weights text.pth: "),
    ("bench compare file.txt file.txt", "file.txt is not a results file of `eagc bench`"),
    ("bench overhead --dataset digits --rows 4000", "--rows 4000: choose a larger data set or fewer rows"),
    ("selftest --device cuda:99", "--device cuda:99 cannot be used: "),
]


def write_places(folder: Path) -> None:
    """Files and folders that are not what an option asks for."""
    (folder / "file.txt").write_text("text\n")
    (folder / "text.pth").write_text("text\n")
    (folder / "empty.json").touch()
    (folder / "split.json").write_text("{}")
    (folder / "broken-link").symlink_to("nothing")
    (folder / "loop").symlink_to("loop2")
    (folder / "loop2").symlink_to("loop")
    with zipfile.ZipFile(folder / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(20_000_000))
    (folder / "raising.py").write_text("def net(**_):\n    return {}['stages']\n")
    write_photographs(folder / "photos")
    (folder / "two.json").write_text('{"known_classes": ["bee", "cat"]}')
    (folder / "full").mkdir()
    (folder / "full" / "notes.txt").write_text("not a run")
    header = json.dumps({"x": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(32)
    (folder / "cut.safetensors").write_bytes(whole[:-1])
    (folder / "torn.safetensors").write_bytes(whole[:20])
    (folder / "cut.pth").write_bytes(b"PK\x03\x04" + bytes(60))
    state = json.dumps({"identity": {"dataset": "cub"}})
    header = json.dumps({"__metadata__": {"state": state}}).encode()
    (folder / "birds.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    RunFolder.create(folder / "run", resolve(), some_facts())
    RunFolder.create(folder / "complete", resolve(), some_facts()).finish({"headline": "last"})
    (folder / "torn").mkdir()
    (folder / "torn" / "run.json").write_text((folder / "run" / "run.json").read_text()[:100])


def ran(line: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command line, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(shlex.split(line))
        except SystemExit as exit:
            code = exit.code
    return code, out.getvalue(), err.getvalue()


def content(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The current folder, with the files and folders of `write_places`; work that begins is a failure."""
    write_places(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for module, name in ((pretraining, "pretrain"), (Loop, "fit")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("work has begun"))
    monkeypatch.setattr(commands, "pin_process", lambda: None)  # it would start this process anew
    return tmp_path


@pytest.mark.parametrize(("line", "words"), faults.trials(AT_ONCE, short=60), ids=lambda text: text)
def test_a_wrong_line_is_refused_in_one_line(line, words, places):
    before = content(places)
    code, out, err = ran(line)
    assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
    assert err.startswith("eagc") and words in err
    assert content(places) == before


@pytest.mark.parametrize(("line", "words"), faults.trials(BY_THE_DATA, short=6), ids=lambda text: text)
def test_what_only_the_data_show_is_refused_before_pretraining(line, words, places):
    before = content(places)
    code, _, err = ran(line)  # the first lines of a run may stand before the error
    assert (code, len(without_bars(err))) == (2, 1), err
    assert words in err
    assert content(places) == before


PROCESSES = [AT_ONCE[i] for i in range(0, len(AT_ONCE), 25)]


@pytest.mark.parametrize(("line", "words"), faults.trials(PROCESSES, short=3), ids=lambda text: text)
def test_a_process_ends_with_code_2(line, words, places):
    done = subprocess.run(
        [sys.executable, "-m", "eagc_ops.app.cli", *shlex.split(line)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr


HEAVY = ("torch", "torchvision", "timm", "sklearn", "scipy", "accelerate", "triton", "matplotlib", "numpy")
BENCH = tuple(f"bench {name}" for name in commands.COMMANDS)
HELP = [
    "--help",
    "help",
    "--version",
    "help train",
    "train --help-all",
    "data verify --help",
    "data download --help",
    "data show --help",
    *(f"{name} --help" for name in (*COMMANDS, *BENCH)),
]
# Runs every line in one process, and names the first that imports a package that takes seconds.
IMPORTS = """
import contextlib, io, json, shlex, sys
from eagc_ops.app.cli import COMMANDS, main
heavy, lines = json.load(sys.stdin)
found = []
class Refuse:
    def find_spec(self, name, *_):
        if name in heavy:
            found.append(name)
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
for line in lines:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(shlex.split(line))
        except (SystemExit, ImportError):
            pass
    if found:
        sys.exit(f"eagc {line} imports {', '.join(found)}")
print(len(lines))
"""


def test_neither_help_nor_a_wrong_line_imports_what_takes_seconds(places):
    lines = [*HELP, *(line for line, _ in AT_ONCE)]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], input=json.dumps([HEAVY, lines]), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{len(lines)}\n"), done.stderr
    assert len(AT_ONCE) >= 100


@pytest.mark.parametrize("command", [*COMMANDS, *BENCH])
def test_wrong_lines_of_every_command_are_tried(command):
    assert any(line.split()[: len(command.split())] == command.split() for line, _ in AT_ONCE)
