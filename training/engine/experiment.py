"""An experiment: everything a configuration asks for, opened and ready, but not trained.

`Experiment(config)` opens data, encoder, student, batches and features. `prepare` makes the parts of the
algorithm that come before its loop: reference model, known-class subspace, coordinator. Everything random is
keyed by the seed, so two experiments of one configuration are the same, bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from torch import Tensor

from eagc_ops import EAGC, Subspace
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.staged_encoder import StagedEncoder, Stages
from eagc_ops.training.config import Config, ConfigError, Sizes
from eagc_ops.training.data import GCDData, open_data
from eagc_ops.training.data.batches import AutomaticPixels, batches
from eagc_ops.training.data.loaders import seeded
from eagc_ops.training.data.precision import autocast
from eagc_ops.training.engine.checkpoint import (
    CheckpointError,
    check_if_ours,
    load_checkpoint,
    tensor_digest,
)
from eagc_ops.training.engine.facts import RunFacts
from eagc_ops.training.engine.memory import keep_freed_memory
from eagc_ops.training.engine.preconditions import starting_checkpoint
from eagc_ops.training.engine.ranks import watch
from eagc_ops.training.engine.store import reference_key, stored, subspace_key
from eagc_ops.training.methods import METHODS, Method, Problem
from eagc_ops.training.methods.alignment import ALIGNMENTS
from eagc_ops.training.models.backbones import load_backbone, weight_file
from eagc_ops.training.models.features import StudentFeatures
from eagc_ops.training.models.reference_model import known_subspace, train_reference
from eagc_ops.training.models.student import Student

__all__ = ["Experiment", "check_shares", "device_of", "encoder_of", "read_starting_point"]

# Keys of draws that belong to no epoch: seeded(seed, -1, key). 0, 4 and 5 are taken by batches and SelEx.
_BACKBONE, _HEADS, _REFERENCE = 1, 2, 3


class StartingPoint(NamedTuple):
    """The trained run that a new one starts from, if its method asks for one (SPTNet: from SimGCD)."""

    weights: dict[str, Tensor]  # named as in `Student.state()`
    record: dict[str, Any]  # where they come from, for run.json


class Experiment:
    """Data, student, batches and features of a configuration.

    `automatic`: the place of the pixel cache if its setting is "auto"; None: no automatic cache.
    `labelled_alone`: as for `open_data`.

    Attributes:
        config: the settings.
        accelerator, device: Accelerate's object, and the device it chose.
        main: whether this is the main process.
        data: the labelled and the unlabelled set.
        student: encoder, coordinator (after `prepare`) and method, on the device.
        batches: the passes over the data.
        features: z of whole sets by the current student.
        facts: split, trunk and sizes of the data and the encoder.
        reference_cross_entropy: mean of the reference model's last epoch; None until `prepare` has one.
        reference_tail: the reference model's tail, for a diagnosis; None likewise, or without a diagnosis.
    """

    def __init__(
        self, config: Config, automatic: AutomaticPixels | None = None, *, labelled_alone: bool = False
    ) -> None:
        self.config = config
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
        self.accelerator = accelerator = _accelerator(config)
        self.device, self.main = accelerator.device, accelerator.is_main_process
        keep_freed_memory(self.device)
        self.data = data = open_data(
            config.dataset,
            config.root,
            split_file=config.split_file,
            image_size=config.image_size,
            skip_unreadable=config.skip_unreadable,
            glyphs=config.glyphs,
            flip=config.flip,
            channels=config.channels,
            labelled_alone=labelled_alone,
        )
        encoder = encoder_of(
            config,
            Sizes(
                known=data.known,
                images=len(data.merged),
                labelled=len(data.labelled),
                pixels=data.image_size,
            ),
            data.channels,
        )
        weights = weight_file(config.backbone, config.weights)
        problem = _problem(config, data, encoder)
        with seeded(config.seed, -1, _HEADS):
            method = METHODS[config.method](config, problem)
        self.student = Student(encoder, method).to(self.device)
        self.batches = batches(
            data,
            config,
            encoder,
            weighting=method.weighting,
            rank=accelerator.process_index,
            world=accelerator.num_processes,
            main=self.main,
            automatic=automatic,
        )
        self.features = StudentFeatures(self.student, self.batches)
        self.facts = RunFacts(
            split_hash=data.split_hash,
            trunk=encoder.trunk_fingerprint(),
            weights=weights and weights.record(),
            inputs=self.batches.identity,
            **problem._asdict(),
            labelled=len(data.labelled),
            steps_per_epoch=len(self.batches.train),
            notes=list(data.notes),
            known_names=list(data.known_names) or None,
        )
        self.reference_cross_entropy: float | None = None
        self.reference_tail: dict[str, Tensor] | None = None

    def prepare(self, store: str | Path) -> None:
        """Make the parts of the algorithm before its loop. A baseline without a warm start needs none.

        `store`: folder of reference models and subspaces. Existing ones are used, new ones are saved there.
        """
        config, encoder = self.config, self.student.encoder
        if not (config.has_operator or config.warm_start):
            return
        store = Path(store)
        # The reference model: train E on D_L with L_cls to obtain E_r
        key = reference_key(encoder, config, self.data, self.facts.inputs)
        tail = stored(store, key, self._make_reference)
        self.reference_cross_entropy = tail.pop("cross_entropy").item()
        self.reference_tail = None if config.diagnose is None else tail
        if config.warm_start:
            encoder.load_tail(tail)
        if not config.has_operator:
            return
        # Freeze E_r to serve as an anchor for labelled data
        encoder.set_reference(tail)
        # Known-class subspace construction: Z_old, S_known, and the average energy ratio
        fitted = stored(store, subspace_key(config, key), self._make_subspace)
        # The coordinator, for GCD training with EAGC
        self.student.eagc = self._coordinator(Subspace(**fitted))
        if config.lambda_a == 0:
            encoder.reference = None  # without alignment, z_ref is not needed
        elif config.alignment != "gradient":
            self.student.alignment = ALIGNMENTS[config.alignment]

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The precision of this experiment, whichever Accelerate has now."""
        return autocast(self.device, self.config.precision)

    @functools.cached_property
    def starting_point(self) -> StartingPoint | None:
        """The trained run that this one starts from; None: it starts from the pretrained backbone."""
        return read_starting_point(self.student.method, self.facts)

    def identity(self) -> dict[str, Any]:
        """The settings and facts that must be the same in a checkpoint of this experiment."""
        return {**self.config.recipe(), **self.facts.identity}

    def read_checkpoint(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and state of a checkpoint of this experiment; one of a different experiment is refused."""
        tensors, state = load_checkpoint(path)
        ours = self.identity()
        theirs = self.config.with_added(state.get("identity", {}))
        differs = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if differs:
            shown = ", ".join(
                f"{name} ({theirs.get(name)!r} there, {ours.get(name)!r} here)" for name in differs[:3]
            )
            raise CheckpointError(
                f"{path} belongs to a different run: {shown}" + (" and more" if len(differs) > 3 else "")
            )
        return tensors, state

    def _make_reference(self) -> dict[str, Tensor]:
        with seeded(self.config.seed, -1, _REFERENCE):
            tail, cross_entropy = train_reference(
                self.student.encoder, self.batches.labelled_train, self.config, self.data.known
            )
        return {**tail, "cross_entropy": torch.tensor(cross_entropy, dtype=torch.float64)}

    def _make_subspace(self) -> dict[str, Tensor]:
        subspace = known_subspace(self.student.encoder, self.batches, self.config)
        return {name: tensor for name, tensor in vars(subspace).items() if tensor is not None}

    def _coordinator(self, subspace: Subspace) -> EAGC:
        config, distributed = self.config, self.accelerator.num_processes > 1
        eagc = EAGC(
            subspace,
            lambda_a=config.lambda_a if config.alignment == "gradient" else 0.0,
            lambda_p=config.lambda_p,
            anchor=config.anchor,
            tau=config.tau,
            energy_momentum=config.energy_momentum,
            process_group=dist.group.WORLD if distributed else None,
        ).to(self.device)
        if distributed:  # each process computed its own, and DDP synchronises parameters, not buffers
            for buffer in eagc.buffers():
                dist.broadcast(buffer, 0)
        return eagc


def read_starting_point(method: Method, facts: RunFacts, any_trunk: bool = False) -> StartingPoint | None:
    """The start in the file or run folder `init`; None for a method that needs no trained run.

    One that does not fit the run is a `ConfigError`. `any_trunk`: the trunk is not compared, because the
    weights of this run do not exist yet.
    """
    if method.config.needs_start is None:
        return None
    tensors, state = load_checkpoint(starting_checkpoint(method.config))
    recipe = state.get("identity", {})
    identity = {**facts.identity, "trunk": recipe.get("trunk")} if any_trunk else facts.identity
    weights = method.starting_weights(tensors, recipe, identity)
    record = {
        "method": recipe["method"],
        "eagc": recipe["eagc"],
        "sha256": tensor_digest(weights),
        "accuracy": state["last"],
    }
    return StartingPoint(weights, record)


def device_of(config: Config) -> str:
    """The kind of device that a run of this configuration will use: "cpu", "cuda", ..."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if config.device == "cpu" or found is None else found.type


def _accelerator(config: Config) -> Accelerator:
    if config.precision == "fp16" and device_of(config) == "cpu":
        raise ConfigError(
            "precision='fp16' needs a GPU: without one Accelerate would silently compute in fp32; "
            "choose 'no' or 'bf16'"
        )
    # Accelerate has one precision in a process, and refuses another. What it has prepared keeps its own.
    if AcceleratorState._shared_state.get("_mixed_precision", config.precision) != config.precision:
        AcceleratorState._reset_state()
    accelerator = Accelerator(
        cpu=device_of(config) == "cpu",  # without it Accelerate sees no other process on a CPU
        mixed_precision=config.precision,
        gradient_accumulation_steps=config.accumulation,
        kwargs_handlers=[
            DistributedDataParallelKwargs(
                broadcast_buffers=False,  # computed from global batches, so they are equal already
                find_unused_parameters=METHODS[config.method].alternating,
            )
        ],
    )
    watch(accelerator)
    check_shares(config, accelerator.num_processes)
    return accelerator


def check_shares(config: Config, world: int) -> None:
    """Refuse a batch that `world` processes cannot divide evenly."""
    if config.batch_size % (world * config.accumulation):
        raise ConfigError(
            f"batch_size={config.batch_size} must be a multiple of {world} processes x "
            f"accumulation={config.accumulation}"
        )


def encoder_of(config: Config, sizes: Sizes, channels: int) -> AnchoredEncoder:
    """The backbone, split into a frozen trunk and a tail that student and reference model train.

    `sizes` are those of the data, with the pixels of the input.
    """
    if config.weights not in ("pretrained", "random"):
        check_if_ours(Path(config.weights))
    assert sizes.pixels is not None  # the docstring's promise
    with seeded(config.seed, -1, _BACKBONE):
        backbone = load_backbone(config.backbone, config.weights, image_size=sizes.pixels, channels=channels)
    depth = len(backbone.blocks)
    config.check_sizes(sizes._replace(blocks=depth, dim=backbone.embed_dim))
    tail = config.tail_blocks
    encoder: AnchoredEncoder
    if isinstance(backbone, Stages):
        encoder = StagedEncoder(backbone, depth - tail)
    else:
        encoder = AnchoredEncoder(backbone, depth - tail, cls_only=config.cls_only)
    encoder.train_last(config.trainable_blocks)
    return encoder


def _problem(config: Config, data: GCDData, encoder: AnchoredEncoder) -> Problem:
    if config.k == "estimate":
        raise ConfigError(
            "k='estimate' is resolved by train(); for your own experiment, call estimate_k and pass its k"
        )
    return Problem(
        dim=encoder.vit.embed_dim,
        known=data.known,
        classes=data.known + data.novel if config.k is None else config.k,
        images=len(data.labelled) + len(data.unlabelled),
        channels=data.channels,
        pixels=data.image_size,
        patch=0 if isinstance(encoder, StagedEncoder) else encoder.vit.patch_embed.patch_size[0],
    )
