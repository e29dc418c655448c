"""The training loop, in the order of the paper's algorithm: reference model, known-class subspace, GCD training with EAGC.

Everything random is keyed by (seed, epoch, position), and the learning rate is a function of the epoch: a run that was killed and
resumed, or that has other data workers, repeats itself bit for bit on a CPU (on a GPU with `deterministic`).
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import broadcast
from torch import Tensor
from tqdm import tqdm

from eagc_ops import EAGC, Subspace
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.analysis.accuracy import Accuracy, accuracy
from eagc_ops.training.analysis.estimate_k import all_features, estimate_k
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.data import Batch, GCDData, draw_key, open_data
from eagc_ops.training.data.batches import VIEWS, batches
from eagc_ops.training.engine.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from eagc_ops.training.engine.run_folder import RunFolder, finite
from eagc_ops.training.methods import METHODS, Problem, Rows
from eagc_ops.training.methods.losses import gram_distillation, proximal, relation_distillation
from eagc_ops.training.models.backbones import load_backbone
from eagc_ops.training.models.reference_model import known_subspace, reference_key, stored, train_reference
from eagc_ops.training.models.student import Student, StudentBatch, StudentFeatures
from eagc_ops.training.progress import bar as progress_bar

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)  # of energy and tau in the log
BINS = 20  # of their histograms over [0, 1]
ALIGNMENTS = {
    "proximal": proximal,
    "gram": gram_distillation,
    "relation": relation_distillation,
}  # losses in place of the anchor term
TAU_NEAR_ZERO, ALMOST_EVERY_ROW = 0.01, 0.95
PROGRESS = (
    "epoch",
    "position",
    "last",
    "best",
    "faults",
    "tau_near_zero",
)  # attributes of `Loop` that a checkpoint keeps


class RunWarning(UserWarning):
    """A run whose numbers do not show what they seem to."""


class Callback:
    """Looks into a run at every optimiser step; `loop.folder.log` takes what it has to say."""

    def before_update(self, loop: Loop, batch: StudentBatch) -> None:
        """After backward, before the step: `.grad` holds the gradient that is applied."""

    def after_update(self, loop: Loop, batch: StudentBatch) -> None:
        """After the step."""


def train(config: Config, output: str | Path, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    """Train a new run in the folder `output`; reference models are kept in `references` beside it.

    Returns what result.json holds: {"headline": "last" | "best", "last": {"epoch", "all", "old", "new"}, "best": {...},
    "warnings": [...], "reference_cross_entropy": of its last epoch, or None}.
    """
    output = Path(output)
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ConfigError(f"{output} is not an empty folder: resume the run in it, or choose another")
    config, estimate = _with_estimated_k(config) if config.k == "estimate" else (config, {})
    loop = Loop(config)
    start = loop.student.method.starting_point(
        loop.facts
    )  # one that does not fit is refused before a folder is made
    facts = {**loop.facts, **estimate, **({} if start is None else {"start": start[1]})}
    loop.accelerator.wait_for_everyone()  # every process has looked before the first one writes
    return loop.fit(RunFolder.create(output, config, facts, loop.main), callbacks)


def resume(output: str | Path, callbacks: Sequence[Callback] = (), **changes: Any) -> dict[str, Any]:
    """Continue a run from its last checkpoint, or from the start if it has none yet. `changes`: settings of the machine only."""
    folder = RunFolder.open(output)
    config = _changed(folder.config, changes)
    if (result := folder.result()) is not None:
        return result
    loop = Loop(config)
    folder.main = loop.main
    return loop.fit(folder, callbacks)


def evaluate(output: str | Path, which: str = "last", **changes: Any) -> Accuracy:
    """All / Old / New on the unlabelled set with a run's "last" or "best" weights. `changes` as in `resume`."""
    folder = RunFolder.open(output)
    if which not in ("last", "best"):
        raise ConfigError(f"which={which!r}: choose from last, best")
    loop = Loop(_changed(folder.config, changes))
    tensors, _ = loop.read_checkpoint(folder.last if which == "last" else folder.best)
    loop.student.load(tensors)
    return loop.evaluate()[0]


class Loop:
    """One run in memory: data, student, optimisers, and how far it is."""

    def __init__(self, config: Config) -> None:
        self.config = config
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        if config.precision == "fp16" and (config.device == "cpu" or not torch.accelerator.is_available()):
            raise ConfigError(
                "precision='fp16' needs a GPU, Accelerate would quietly compute in fp32 without one: choose no or bf16"
            )
        self.accelerator = Accelerator(
            cpu=config.device == "cpu",
            mixed_precision=config.precision,
            gradient_accumulation_steps=config.accumulation,
            kwargs_handlers=[
                DistributedDataParallelKwargs(
                    broadcast_buffers=False,  # they come from global batches: equal anyway
                    find_unused_parameters=METHODS[config.method].alternating,
                )
            ],
        )
        self.device, self.main = self.accelerator.device, self.accelerator.is_main_process
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        if config.batch_size % (world * config.accumulation):
            wanted = f"{world} processes x accumulation={config.accumulation}"
            raise ConfigError(f"batch_size={config.batch_size} must be a multiple of {wanted}")
        self.data = data = open_data(
            config.dataset, config.root, split_file=config.split_file, image_size=config.image_size
        )
        with _seeded(config.seed, -1, 1):
            vit = load_backbone(
                config.backbone, config.weights, image_size=data.image_size, channels=data.channels
            )
        for name, blocks in (
            ("trainable_blocks", config.trainable_blocks),
            ("reference_blocks", config.blocks_of_reference),
        ):
            if blocks > len(vit.blocks):
                raise ConfigError(f"{name}={blocks}: {config.backbone} has only {len(vit.blocks)} blocks")
        if config.subspace == "pca" and config.pca_k > (most := min(vit.embed_dim, len(data.labelled))):
            raise ConfigError(
                f"pca_k={config.pca_k}: {len(data.labelled)} labelled images and D={vit.embed_dim} allow at most {most}"
            )
        # The tail holds what student or reference train: below it they are the same.
        encoder = AnchoredEncoder(
            vit,
            len(vit.blocks) - max(config.trainable_blocks, config.blocks_of_reference),
            cls_only=config.cls_only,
        )
        encoder.train_last(config.trainable_blocks)
        problem = Problem(
            dim=vit.embed_dim,
            known=data.known,
            classes=_classes(config, data),
            images=len(data.labelled) + len(data.unlabelled),
            channels=data.channels,
            pixels=data.image_size,
            patch=vit.patch_embed.patch_size[0],
        )
        with _seeded(config.seed, -1, 2):
            method = METHODS[config.method](config, problem)
        self.student = Student(encoder, method).to(self.device)
        self.batches = batches(
            data, config, encoder, weighting=method.weighting, rank=rank, world=world, main=self.main
        )
        self.features = StudentFeatures(self.student, self.batches)
        self.facts = {
            "split_hash": data.split_hash,
            "trunk": encoder.trunk_fingerprint(),
            "inputs": self.batches.identity,
            **problem._asdict(),
            "labelled": len(data.labelled),
            "steps_per_epoch": len(self.batches.train),
            "notes": list(data.notes),
        }
        self.epoch = self.position = 0
        self.last: dict[str, Any] | None = None
        self.best: dict[str, Any] | None = None
        self.faults: list[str] = []
        self.tau_near_zero: list[float] = []  # share of unlabelled rows, one entry per log line of the epoch
        self.reference_cross_entropy: float | None = None

    @property
    def step(self) -> int:
        """Optimiser steps taken."""
        return self.epoch * len(self.batches.train) + self.position

    # The algorithm ---------------------------------------------------------------------------------------------------------------

    def fit(self, folder: RunFolder, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """Train to the last epoch, from the folder's checkpoint if it has one."""
        self.folder, config = folder, self.config
        callbacks = [*_diagnosis(config), *callbacks]
        checkpoint = self.read_checkpoint(folder.last) if folder.last.exists() else None
        start = self.student.method.starting_point(self.facts) if checkpoint is None else None
        self._prepare_eagc(folder.path.parent / "references")
        self.optimisers = self.student.method.optimisers(self.student.encoder)
        if checkpoint is not None:
            self._restore(*checkpoint)
        elif start is not None:
            self.student.load({**self.student.state(), **start[0]})
        self.model, *self.optimisers = self.accelerator.prepare(self.student, *self.optimisers)
        folder.start_logs(self.epoch, self.position, self.step + 1)
        total = config.epochs * len(self.batches.train)
        with (
            closing(folder),
            progress_bar(total=total, initial=self.step, unit="step", mininterval=1, shown=self.main) as bar,
        ):
            while self.epoch < config.epochs:
                bar.set_description(f"epoch {self.epoch + 1}/{config.epochs}")
                timing = self._train_epoch(bar, callbacks)
                self._finish_epoch(bar, timing)
        result = {
            "headline": config.headline,
            "last": self.last,
            "best": self.best,
            "warnings": self.faults,
            "reference_cross_entropy": self.reference_cross_entropy,
        }
        folder.finish(result)
        return result

    def _prepare_eagc(self, store: Path) -> None:
        """The parts of the algorithm before its loop. A baseline without a warm start needs neither."""
        config, encoder = self.config, self.student.encoder
        if not (config.has_operator or config.warm_start):
            return
        writes = self.accelerator.is_local_main_process
        # Getting reference model: train E on D_L using L_cls to obtain E_r
        key = reference_key(encoder, config, self.data.split_hash, self.batches.identity)

        def make_reference() -> dict[str, Tensor]:
            with _seeded(config.seed, -1, 3):
                return train_reference(
                    encoder, self.batches.labelled_train, config, self.data.known, self.main
                )

        tail = stored(store, key, make_reference, writes)
        self.reference_cross_entropy = tail.pop("cross_entropy").item()
        if config.warm_start:
            encoder.load_tail(tail)
        if not config.has_operator:
            return
        # Freeze E_r to serve as an anchor for labelled data
        encoder.set_reference(tail)

        # Known-class subspace construction: Z_old, S_known, and the average energy ratio
        def make_subspace() -> dict[str, Tensor]:
            subspace = known_subspace(encoder, self.batches.labelled(), config)
            return {"matrix": subspace.matrix, "energy_ref": subspace.energy_ref}

        kind = {"pca_k": config.pca_k} if config.subspace == "pca" else {"aperture": config.aperture}
        fitted = stored(store, {"kind": "subspace-1", "reference": key, **kind}, make_subspace, writes)
        distributed = self.accelerator.num_processes > 1
        self.student.eagc = EAGC(
            Subspace(fitted["matrix"], fitted["energy_ref"]),
            lambda_a=config.lambda_a if config.alignment == "gradient" else 0.0,
            lambda_p=config.lambda_p,
            anchor=config.anchor,
            tau=config.tau,
            energy_momentum=config.energy_momentum,
            process_group=dist.group.WORLD if distributed else None,
            record=True,
        ).to(self.device)
        if distributed:  # each process computed its own; DDP equalises parameters, not buffers
            for buffer in self.student.eagc.buffers():
                dist.broadcast(buffer, 0)
        if config.lambda_a == 0:
            encoder.reference = None  # no alignment: nobody reads z_hat
        elif config.alignment != "gradient":
            self.student.alignment = ALIGNMENTS[config.alignment]

    def _train_epoch(self, bar: tqdm, callbacks: Sequence[Callback]) -> dict[str, float]:
        """GCD training with EAGC: the batches of one epoch, from `self.position` on. Returns their number and their seconds."""
        config, steps, first, started = (
            self.config,
            len(self.batches.train),
            self.position,
            time.perf_counter(),
        )
        meter = _Meter()
        if first == 0:
            self.tau_near_zero = []
            self.student.eval()
            with torch.no_grad(), self.accelerator.autocast():
                self.student.method.start_epoch(self.epoch, self.features)
        self.student.train()
        for batch in self.batches.train.epoch(self.epoch, first):  # (x, y, mask_lab) from D_L and D_U
            torch.manual_seed(
                draw_key(config.seed, self.epoch, self.position, self.accelerator.process_index, -1)
            )
            self._update(batch, meter, callbacks)
            self.position += 1
            bar.update()
            save = (
                config.checkpoint_every
                and self.position % config.checkpoint_every == 0
                and self.position < steps
            )
            if save or self.position % config.log_every == 0 or self.position == steps:
                self._log_step(meter, bar)
            if save:
                self._save_checkpoint()
        return {"steps": steps - first, "seconds": time.perf_counter() - started}

    def _update(self, batch: Batch, meter: _Meter, callbacks: Sequence[Callback]) -> None:
        """One optimiser step of E and phi."""
        method = self.student.method
        optimiser = self.optimisers[method.phase(self.position)]
        for other in self.optimisers if method.alternating else ():
            for group in other.param_groups:
                for parameter in group["params"]:
                    parameter.requires_grad_(other is optimiser)
        for group in optimiser.param_groups:
            group["lr"] = method.learning_rate(group["initial_lr"], self.epoch, self.position)
        for part in self._student_batches(batch):
            with self.accelerator.accumulate(self.model):
                loss, token = self.model(*part)  # L_GCD; EAGC has taken its place in the graph
                total = loss.supervised + loss.unsupervised
                self.accelerator.backward(
                    total if token is None else total + token
                )  # the token carries the loss scale to the anchor
                if self.accelerator.sync_gradients:
                    for callback in callbacks:
                        callback.before_update(self, part)
                optimiser.step()
            meter.add(
                {
                    "loss": total,
                    "supervised": loss.supervised,
                    "unsupervised": loss.unsupervised,
                    **loss.terms,
                }
            )
        self.student.zero_grad()  # all of it, also what another phase's optimiser would step
        for callback in callbacks:
            callback.after_update(self, part)

    def _student_batches(self, batch: Batch) -> Iterator[StudentBatch]:
        """The batch on the device, in `accumulation` parts."""
        size = len(batch.label) // self.config.accumulation
        for part in (slice(start, start + size) for start in range(0, len(batch.label), size)):
            labelled = batch.labelled[part].repeat(VIEWS)
            label = batch.label[part].repeat(VIEWS).where(labelled, -1)
            columns = (label, labelled, batch.uq_idx[part].repeat(VIEWS), labelled.nonzero().flatten())
            *columns, labelled_rows = (column.to(self.device, non_blocking=True) for column in columns)
            views = [view[part].to(self.device, non_blocking=True) for view in batch.views]
            yield StudentBatch(views, Rows(*columns, self.epoch, self.position), labelled_rows)

    # After an epoch --------------------------------------------------------------------------------------------------------------

    def evaluate(self) -> tuple[Accuracy, int]:
        """All / Old / New on the unlabelled set, and the number of classes that were predicted."""
        self.student.eval()
        with torch.no_grad(), self.accelerator.autocast():
            predictions = self.student.method.predict(self.features).cpu()
        return accuracy(predictions, self.data.unlabelled.labels, self.data.known), len(predictions.unique())

    def _finish_epoch(self, bar: tqdm, timing: dict[str, float]) -> None:
        """Evaluate, keep the best weights, save the checkpoint."""
        scores, predicted = self.evaluate()
        bar.set_postfix(All=f"{scores.all:.1%}", Old=f"{scores.old:.1%}", New=f"{scores.new:.1%}")
        self.last = {"epoch": self.epoch, **finite(scores._asdict())}
        self.folder.log("epoch", self.step, {**self.last, "classes_predicted": predicted, **timing})
        self._find_faults(predicted)
        if self.best is None or self.last["all"] > self.best["all"]:
            self.best = self.last
            if self.main:
                save_checkpoint(
                    self.folder.best, self.student.state(), {"identity": self._identity(), "last": self.last}
                )
        self.epoch, self.position = self.epoch + 1, 0
        self._save_checkpoint()

    def _find_faults(self, predicted: int) -> None:
        """What is wrong with the run as of this epoch. Classes count at the end; tau also after the first epoch, with time left to stop."""
        first, end = self.epoch == 0, self.epoch == self.config.epochs - 1
        self.faults = []
        if end and predicted < self.facts["classes"]:
            self.faults.append(
                f"the run predicts {predicted} of {self.facts['classes']} classes: the others are empty, which limits New"
            )
        share = sum(self.tau_near_zero) / max(len(self.tau_near_zero), 1)
        if (first or end) and share > ALMOST_EVERY_ROW:
            self.faults.append(
                f"tau is below {TAU_NEAR_ZERO} on {share:.1%} of the unlabelled rows, so EEP does next to nothing: "
                f"S is close to the identity for features of this scale; try a smaller aperture (now {self.config.aperture})"
            )
        for message in self.faults if self.main else ():
            warnings.warn(message, RunWarning, stacklevel=2)

    def _log_step(self, meter: _Meter, bar: tqdm) -> None:
        """The only place where values of a step leave the device."""
        means = meter.read()
        if not math.isfinite(means["loss"]):
            raise FloatingPointError(
                f"the loss is {means['loss']} in epoch {self.epoch}, up to step {self.position}: {means}"
            )
        line = {"epoch": self.epoch, "position": self.position - 1, **means}
        stepped = self.optimisers[self.student.method.phase(self.position - 1)]
        groups = [
            (optimiser is stepped, group["lr"])
            for optimiser in self.optimisers
            for group in optimiser.param_groups
        ]
        line |= {f"lr_{i}": lr for i, (used, lr) in enumerate(groups) if used}
        if self.student.eagc is not None and self.student.method.coordinated(self.position - 1):
            energy, tau = (
                rows[~rows.isnan()]
                for rows in (self.student.eagc.last_energy.cpu(), self.student.eagc.last_tau.cpu())
            )
            line |= {**_distribution("energy", energy), **_distribution("tau", tau)}  # of the unlabelled rows
            self.tau_near_zero += [(tau < TAU_NEAR_ZERO).float().mean().item()] if len(tau) else []
        self.folder.log("step", self.step, line)
        bar.set_postfix(loss=f"{means['loss']:.3f}")

    # Checkpoints -----------------------------------------------------------------------------------------------------------------

    def read_checkpoint(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and state of a checkpoint of this run; one of another run is refused."""
        tensors, state = load_checkpoint(path)
        ours, theirs = self._identity(), state.get("identity", {})
        differs = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if differs:
            shown = ", ".join(
                f"{name} ({theirs.get(name)!r} there, {ours.get(name)!r} here)" for name in differs[:3]
            )
            raise CheckpointError(
                f"{path} belongs to another run: {shown}" + (" and more" if len(differs) > 3 else "")
            )
        return tensors, state

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must agree in to belong to this run."""
        return {
            **self.config.recipe(),
            **{name: self.facts[name] for name in ("split_hash", "trunk", "inputs")},
        }

    def _save_checkpoint(self) -> None:
        """Everything needed to go on. Random draws are keyed and learning rates are functions of the epoch: neither has a state."""
        if not self.main:
            return
        tensors = self.student.state()
        names = {parameter: name for name, parameter in self.student.named_parameters()}
        for i, optimiser in enumerate(self.optimisers):
            for parameter, values in optimiser.state.items():
                tensors |= {
                    f"optimiser.{i}.{names[parameter]}.{key}": value
                    for key, value in values.items()
                    if value is not None
                }
        scaler = self.accelerator.scaler.state_dict() if self.accelerator.scaler else None
        progress = {name: getattr(self, name) for name in PROGRESS}
        save_checkpoint(
            self.folder.last, tensors, {"identity": self._identity(), "scaler": scaler, **progress}
        )

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.student.load(tensors)
        parameters = dict(self.student.named_parameters())
        for name in (name for name in tensors if name.startswith("optimiser.")):
            _, i, path = name.split(".", 2)
            parameter, key = path.rsplit(".", 1)
            self.optimisers[int(i)].state[parameters[parameter]][key] = tensors[name].to(self.device)
        if self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        for name in PROGRESS:
            setattr(self, name, state[name])


class _Meter:
    """Means of 0-d device tensors between two log lines, summed on the device."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, values: dict[str, Tensor]) -> None:
        self._sums = {name: self._sums.get(name, 0) + value.detach() for name, value in values.items()}
        self._count += 1

    def read(self) -> dict[str, float]:
        means = (torch.stack(list(self._sums.values())) / self._count).tolist()  # one transfer
        means = dict(zip(self._sums, means))
        self._sums, self._count = {}, 0
        return means


def _distribution(name: str, values: Tensor) -> dict[str, Any]:
    """Quantiles and histogram of values in [0, 1]."""
    if len(values) == 0:
        return {}
    quantiles = values.quantile(torch.tensor(QUANTILES)).tolist()
    line = {f"{name}_q{round(100 * q)}": value for q, value in zip(QUANTILES, quantiles)}
    return {**line, f"{name}_histogram": values.histc(BINS, 0, 1).int().tolist()}


def _classes(config: Config, data: GCDData) -> int:
    """K of the run."""
    if config.k == "estimate":
        raise ConfigError("k='estimate' is made a number by train(); see estimate_k for a loop of your own")
    if config.k is not None and config.k < data.known:
        raise ConfigError(f"k={config.k}: {data.known} classes are known already, and K counts them too")
    return data.known + data.novel if config.k is None else config.k


def _with_estimated_k(config: Config) -> tuple[Config, dict[str, Any]]:
    """The configuration with a number in place of "estimate", and a record of the search. A resumed run finds the number."""
    loop = Loop(config.replace(k=None))
    found = estimate_k(*all_features(loop.student.encoder, loop.batches), loop.data.known, progress=loop.main)
    k = int(broadcast(torch.tensor(found.k, device=loop.device)))  # processes may round differently
    return config.replace(k=k), {"k_estimate": found._asdict()}


def _diagnosis(config: Config) -> list[Callback]:
    """The callback that `diagnose` asks for."""
    from eagc_ops.training.analysis.diagnosis import Diagnose  # it is made of this file's parts

    return [] if config.diagnose is None else [Diagnose(**dict(config.diagnose))]


def _changed(config: Config, changes: dict[str, Any]) -> Config:
    unknown = [name for name in changes if name not in config.help_texts()]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)} is not a setting of {config.method}")
    fixed = [
        name
        for name, value in changes.items()
        if name not in config.machine_settings() and value != getattr(config, name, None)
    ]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)} cannot change in a run that exists (only {', '.join(config.machine_settings())} can): start a new run"
        )
    return config.replace(**changes)


@contextmanager
def _seeded(*key: int) -> Iterator[None]:
    """Draws inside depend on `key` alone, and the generator of the process is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draw_key(*key))
        yield
