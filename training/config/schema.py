"""The settings of a run: `Config` has those of every method, and a subclass adds those of one method.

>>> Config(lambda_p=-1.0)
Traceback (most recent call last):
eagc_ops.training.config.settings.ConfigError: lambda_p must be >= 0, got -1.0

`resolve` in `presets.py` fills a configuration from a preset; `options.py` makes command-line options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator
from typing_extensions import Self

from eagc_ops.training.config.backbones import BACKBONES, image_size_error, is_published
from eagc_ops.training.config.datasets import SPECS, Spec, channels_of
from eagc_ops.training.config.settings import ADDED, MACHINE, ConfigError, Settings

# Places. An empty one is most often a shell variable that is not set.
Place = Annotated[str, Field(min_length=1)]
_PLACES = ("root", "split_file", "skip_unreadable", "weights", "pixel_cache", "trunk_cache", "init")
_WORDS = ("pretrained", "random", "auto", "off")  # instead of a place
LARGEST_SEED = 2**63 - 1  # draws are keyed by signed 64-bit numbers


class Sizes(NamedTuple):
    """The sizes of data and backbone that limit the settings; None: not known yet."""

    known: int | None = None  # classes
    images: int | None = None  # labelled and unlabelled
    labelled: int | None = None  # images
    pixels: int | None = None  # side of the input
    multiple: int | None = None  # of which `pixels` must be one
    blocks: int | None = None
    dim: int | None = None  # D of z


class Diagnosis(Settings):
    """When gradient entanglement is measured, and on which parameters."""

    every: int = Field(1, ge=1, description="measure at optimizer steps 0, N, 2N, ...")
    steps: int | None = Field(None, ge=1, description="stop measuring at this step; none: measure to the end")
    parameters: Literal["block", "all"] = Field(
        "block",
        description="gradients to compare: the last block's, as in the released code, "
        "or of all trained parameters, as in the paper",
    )
    k: int = Field(16, ge=1, description="number of leading directions in SOC")


CHARACTERS = 200  # that serve as classes of the data set `glyphs`


class Glyphs(Settings):
    """The images of the data set `glyphs`."""

    classes: int = Field(60, ge=2, le=CHARACTERS, description="characters, known and novel")
    known: int = Field(10, ge=1, description="known characters")
    per_class: int = Field(30, ge=2, le=1000, description="images of every character")
    strength: float = Field(
        0.7, ge=0, le=1, description="strength of the deformations; 0: plain drawings, 1: hard to read"
    )
    skip: int = Field(0, ge=0, description="how many characters of the list to skip, to get other classes")

    @model_validator(mode="after")
    def _exist_and_some_are_novel(self) -> Self:
        if self.skip + self.classes > CHARACTERS:
            raise ConfigError(
                f"skip must be <= {CHARACTERS - self.classes}, because there are {CHARACTERS} characters and "
                f"{self.classes} are classes, got {self.skip}"
            )
        if self.known >= self.classes:
            raise ConfigError(
                f"known must be < {self.classes}, the number of classes, got {self.known}; at least one must "
                "be novel"
            )
        return self


class Config(Settings):
    """All settings of a run. Each change that the released EAGC makes to a recipe has its own setting."""

    # Why a run cannot go without the setting `init`, for a method that starts from a trained run
    needs_start: ClassVar[str | None] = None

    # Method and data
    method: str = Field("simgcd", description="GCD method")
    dataset: str = Field("digits", description="data set; 'glyphs' and 'digits' need no download")
    preset: Literal["baseline", "paper", "release", "recommended"] = Field(
        "paper",
        description="recipe. baseline: the method's own, without EAGC; paper: the paper's text; release: the "
        "released scripts; recommended: paper with a warm start and a smaller encoder rate, not confirmed "
        "yet. SPTNet keeps its own epochs and learning rates in all of them",
    )
    root: Annotated[Place | None, MACHINE] = Field(None, description="folder of the data set")
    split_file: Annotated[Place | None, MACHINE] = Field(
        None, description="file with the class split; SSB data sets and image folders need one"
    )
    skip_unreadable: Annotated[Place | None, MACHINE] = Field(
        None,
        description="leave out images that cannot be read: those listed in FILE by `eagc data verify "
        "-o FILE`; without FILE, the command first decodes all pixels",
    )
    image_size: int | None = Field(
        None, ge=1, le=4096, description="side of the square input in pixels; none: the data set's own"
    )
    flip: Annotated[bool | None, ADDED] = Field(
        None,
        description="mirror half of the training views; none: mirror if that keeps the class in this "
        "data set",
    )
    channels: Annotated[Literal[1, 3] | None, ADDED] = Field(
        None,
        description="channels of the images: 1 reads files in grey, 3 in RGB; none: the data set's own, 1 "
        "for glyphs and digits, 3 for all others",
    )
    backbone: str = Field(
        "dino_vitb16",
        description="encoder: dino_vitb16, dinov2_vitb14_reg4, lite0, vit_glyphs, vit_digits, timm's "
        "name of a ViT or ResNet, or your own package.module:factory",
    )
    weights: Annotated[Place, MACHINE] = Field(
        "pretrained",
        description="weights of the backbone: pretrained (timm's own, from the hub or its cache; "
        "lite0: from its package), random (from the seed), or a file (.pth or .safetensors); for digits the "
        "default is to pretrain an encoder first",
    )
    glyphs: Annotated[Glyphs, ADDED] = Field(Glyphs(), description="images of the data set glyphs")
    k: Annotated[int, Field(ge=1)] | Literal["estimate"] | None = Field(
        None,
        description="number of classes to train for, known and novel together; "
        "estimate: estimate it before training; none: the true number",
    )
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="random seed (draws, augmentations, heads)")

    # The coordinator
    eagc: bool = Field(
        True, description="coordinate gradients between encoder and heads; changes nothing else"
    )
    lambda_a: float = Field(0.7, ge=0, description="strength of the anchor term on labelled rows (AGA)")
    lambda_p: float = Field(0.5, ge=0, description="strength of the projection of unlabelled rows (EEP)")
    subspace: Literal["conceptor", "pca"] = Field(
        "conceptor", description="known-class subspace: conceptor, or pca_k principal directions (ablation)"
    )
    aperture: float = Field(
        2.0,
        ge=1e-6,
        le=1e6,
        description="aperture of the conceptor; a larger one captures more of each direction",
    )
    pca_k: int = Field(16, ge=1, description="directions of the subspace 'pca'")
    anchor: Literal["mean", "sum"] = Field(
        "mean", description="anchor term: divided by labelled rows x D (released), or the sum of the paper"
    )
    alignment: Literal["gradient", "proximal", "gram", "relation"] = Field(
        "gradient",
        description="how to keep labelled features near the reference model: by the anchor term (AGA), "
        "or instead by a loss with weight lambda_a",
    )
    tau: Literal["energy", "uniform"] = Field(
        "energy", description="projection weight by energy, or 1 for every unlabelled row (ablation)"
    )
    energy: Annotated[Literal["conceptor", "whitened"], ADDED] = Field(
        "conceptor",
        description="energy behind tau: of the known-class subspace itself, or of a conceptor of "
        "features whitened by the covariance of all images, labelled and unlabelled",
    )
    energy_momentum: float | None = Field(
        None, ge=0, lt=1, description="EMA momentum of the labelled rows' mean energy; none: keep it fixed"
    )

    # The student
    warm_start: bool = Field(
        False, description="start the student from the reference model instead of the pretrained backbone"
    )
    trainable_blocks: int = Field(1, ge=1, description="number of last ViT blocks to train")
    cls_only: bool = Field(
        True, description="compute only the CLS row of the last block (same numbers, faster)"
    )
    mlp_head_layers: int = Field(
        0, ge=0, le=2, description="layers of the extra MLP between encoder and heads (0, 1 or 2)"
    )

    projector_width: Annotated[int, ADDED] = Field(
        2048, ge=1, le=2**16, description="hidden units of the projector (published: 2048)"
    )

    # The reference model, trained once on labelled data
    reference_blocks: int | None = Field(
        None, ge=1, description="number of last blocks the reference model trains; none: trainable_blocks"
    )
    reference_epochs: int = Field(30, ge=1, le=10**6, description="epochs of the reference model")
    reference_batch_size: int = Field(32, ge=1, description="images per batch of the reference model")
    reference_lr: float = Field(
        0.02, gt=0, description="learning rate of the reference model; a cosine lowers it to a thousandth"
    )
    reference_weight_decay: float = Field(
        1e-4, ge=0, description="weight decay of the reference model (biases and norms exempt)"
    )

    # Optimization
    epochs: int = Field(200, ge=1, le=10**6, description="epochs of GCD training")
    batch_size: int = Field(128, ge=2, description="images per optimizer step over all processes")
    accumulation: int = Field(
        1, ge=1, description="micro-batches per step; contrastive terms see one micro-batch at a time"
    )
    backbone_lr: float = Field(0.1, gt=0, description="learning rate of the encoder")
    head_lr: float = Field(1.0, gt=0, description="learning rate of the heads")
    lr_floor: float = Field(
        1e-3, ge=0, le=1, description="final learning rate of every group, as a fraction of the head's"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(5e-5, ge=0, description="weight decay")

    # Hardware, cache and log
    device: Annotated[Literal["auto", "cpu"], MACHINE] = Field(
        "auto", description="device to compute on; auto: Accelerate's choice"
    )
    precision: Literal["no", "bf16", "fp16"] = Field(
        "no", description="mixed precision (the released numbers use no)"
    )
    tf32: Annotated[bool, ADDED] = Field(
        False,
        description="multiply fp32 matrices in TF32 on NVIDIA's tensor cores: faster, 10 bits of mantissa "
        "(convolutions, such as the patch embedding, do so by torch's own default)",
    )
    compile: Annotated[bool, ADDED] = Field(
        False,
        description="compile the blocks of trunk and tail with torch.compile: the first steps take longer, "
        "the others are faster on a GPU, and rounding differs",
    )
    deterministic: bool = Field(
        False,
        description="deterministic algorithms on a GPU (on a CPU, a run of one process repeats bit for bit)",
    )
    pixel_cache: Annotated[Place, MACHINE] = Field(
        "auto",
        description="folder for decoded and resized images, so that every draw only crops and flips; auto: "
        "`pixels` beside the run, if it takes 8 MB to 16 GB and at most half of the free disk; off: decode "
        "at every draw",
    )
    trunk_cache: Annotated[Place | None, MACHINE] = Field(
        None, description="folder for the trunk's tokens: compute them once, and train without the trunk"
    )
    cache_views: int = Field(
        8,
        ge=2,
        le=1000,
        description="augmented views of every image in the trunk cache; training draws two of them",
    )
    cache_half: bool = Field(False, description="store the trunk cache in half precision")
    workers: Annotated[int, MACHINE] = Field(
        0, ge=0, le=256, description="data loader processes; the random draws do not depend on their number"
    )
    log_every: Annotated[int, MACHINE] = Field(
        20, ge=1, description="steps between log lines; values are read from the device only then"
    )
    checkpoint_every: Annotated[int, MACHINE] = Field(
        0, ge=0, description="steps between checkpoints inside an epoch; 0: none"
    )
    checkpoint_epochs: Annotated[int, MACHINE] = Field(
        1, ge=1, description="epochs between checkpoints; the last epoch always has one"
    )
    evaluate_every: Annotated[int, ADDED] = Field(
        1,
        ge=1,
        description="epochs between evaluations, which include the last epoch and give the best one",
    )
    tensorboard_every: Annotated[int, MACHINE] = Field(
        1, ge=0, description="epochs between TensorBoard entries; 0: none"
    )
    diagnose: Annotated[Diagnosis | None, MACHINE] = Field(
        None,
        description="measure gradient entanglement while training: GDC, SOC, rho, mixed gradients; "
        "the run itself does not change",
    )
    headline: Literal["last", "best"] = Field(
        "last",
        description="epoch to report first; the best one is chosen with the truth about unlabelled images",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_weights(cls, values: Any) -> Any:
        """Published weights if there are any, otherwise random ones."""
        backbone = values.get("backbone", cls.model_fields["backbone"].default)
        default = "pretrained" if not isinstance(backbone, str) or is_published(backbone) else "random"
        return {"weights": default, **values}

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.dataset not in SPECS:
            raise ConfigError(f"dataset must be one of {', '.join(SPECS)}, got {self.dataset!r}", "dataset")
        channels_of(self.dataset, self.channels)
        if self.weights == "pretrained" and not is_published(self.backbone):
            raise ConfigError(
                f"weights='pretrained': no weights of {self.backbone} are published; leave it out, or name a "
                "file"
            )
        if self.dataset != "glyphs" and self.glyphs != Glyphs():
            raise ConfigError(
                f"dataset={self.dataset!r} does not use the settings of glyphs: leave them out, or choose "
                "dataset='glyphs'"
            )
        if self.batch_size % self.accumulation:
            raise ConfigError(
                f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}; "
                "choose a divisor"
            )
        if self.batch_size // self.accumulation < 2:
            raise ConfigError(
                f"accumulation={self.accumulation} leaves {self.batch_size // self.accumulation} image of "
                f"batch_size={self.batch_size} in a micro-batch, but contrastive terms need 2; "
                "choose a smaller one"
            )
        if self.lr_floor * self.head_lr > self.backbone_lr:
            raise ConfigError(
                f"lr_floor={self.lr_floor:g} x head_lr={self.head_lr:g} is more than "
                f"backbone_lr={self.backbone_lr:g}: the encoder's learning rate would rise; "
                f"lower lr_floor to {self.backbone_lr / self.head_lr:g} or less"
            )
        if self.alignment != "gradient" and not self.has_operator:
            raise ConfigError(
                f"alignment={self.alignment!r} replaces the anchor term of EAGC, but this run does not use "
                "the operator: leave it out, or turn EAGC on (with lambda_p=0 for this loss alone)"
            )
        if self.alignment != "gradient" and self.anchor == "sum":
            raise ConfigError(
                f"anchor='sum': alignment={self.alignment!r} replaces the anchor term by a mean; "
                "leave one of them out"
            )
        if self.energy != "conceptor":
            self._energy_is_used()
        if self.diagnose is not None and self.accumulation > 1:
            raise ConfigError(
                f"accumulation={self.accumulation}: the diagnosis compares gradients of a whole batch; "
                "set it to 1 to diagnose"
            )
        return self

    def _energy_is_used(self) -> None:
        if not self.has_operator:
            raise ConfigError(
                f"energy={self.energy!r} is a setting of EAGC, but this run does not use the operator: "
                "leave it out, or turn EAGC on"
            )
        if self.tau == "uniform":
            raise ConfigError(f"energy={self.energy!r}: tau='uniform' needs no energy; leave one of them out")
        if self.subspace != "conceptor":
            raise ConfigError(
                f"energy={self.energy!r} is fitted together with a conceptor, but this run has "
                f"subspace={self.subspace!r}; leave one of them out"
            )

    @property
    def changed_images(self) -> dict[str, Any]:
        """What makes other images of a data set with the same split, where it differs from the usual.

        `flip` and `channels`; of `glyphs`, `strength` and `skip`.
        """
        own, drawn = SPECS[self.dataset], Glyphs()
        asked = {"flip": (self.flip, own.flip), "channels": (self.channels, own.channels)}
        if self.dataset == "glyphs":
            asked |= {
                name: (getattr(self.glyphs, name), getattr(drawn, name)) for name in ("strength", "skip")
            }
        return {name: value for name, (value, usual) in asked.items() if value not in (None, usual)}

    @property
    def spec(self) -> Spec:
        """Published facts about the data set; those of `glyphs` follow from its settings."""
        spec, glyphs = SPECS[self.dataset], self.glyphs
        if self.dataset != "glyphs":
            return spec
        return replace(
            spec,
            known=glyphs.known,
            novel=glyphs.classes - glyphs.known,
            train=glyphs.classes * glyphs.per_class,
            pool=glyphs.known * glyphs.per_class,
        )

    @property
    def has_operator(self) -> bool:
        """Whether this run applies EAGC's operator. SPTNet can also use EAGC through its start alone."""
        return self.eagc

    @property
    def tail_blocks(self) -> int:
        """Number of last blocks that the student or the reference model trains: the trunk ends below them."""
        return max(self.trainable_blocks, self.blocks_of_reference)

    @property
    def blocks_of_reference(self) -> int:
        """Number of last blocks that the reference model trains."""
        return self.trainable_blocks if self.reference_blocks is None else self.reference_blocks

    def check_sizes(self, sizes: Sizes) -> None:
        """Raise a `ConfigError` if a setting does not fit the data or the backbone."""
        if isinstance(self.k, int) and sizes.known is not None and self.k < sizes.known:
            raise ConfigError(f"k must be >= {sizes.known}, the number of known classes, got {self.k}", "k")
        if isinstance(self.k, int) and sizes.images is not None and self.k > sizes.images:
            raise ConfigError(f"k must be <= {sizes.images:,}, the number of images, got {self.k}", "k")
        if sizes.images is not None and self.batch_size > sizes.images:
            raise ConfigError(
                f"batch_size={self.batch_size} is larger than the {sizes.images} images of an epoch; "
                "choose a smaller one"
            )
        if sizes.pixels is not None and sizes.multiple is not None and sizes.pixels % sizes.multiple:
            raise ConfigError(image_size_error(self.backbone, sizes.pixels, sizes.multiple))
        for name, blocks in (
            ("trainable_blocks", self.trainable_blocks),
            ("reference_blocks", self.blocks_of_reference),
        ):
            if sizes.blocks is not None and blocks > sizes.blocks:
                raise ConfigError(
                    f"{name} must be <= {sizes.blocks}, the blocks of {self.backbone}, got {blocks}"
                )
        if self.subspace == "pca" and sizes.dim is not None and sizes.labelled is not None:
            most = min(sizes.dim, sizes.labelled)
            if self.pca_k > most:
                raise ConfigError(
                    f"pca_k must be <= {most} with {sizes.labelled} labelled images and D={sizes.dim}, "
                    f"got {self.pca_k}"
                )

    def published_sizes(self) -> Sizes:
        """The sizes that are known without opening the data set or building the backbone."""
        spec, backbone = self.spec, BACKBONES.get(self.backbone)
        return Sizes(
            known=spec.known or None,
            images=spec.train or None,
            labelled=spec.pool // 2 or None,
            pixels=spec.image_size if self.image_size is None else self.image_size,
            multiple=backbone and backbone.multiple,
            blocks=backbone and backbone.blocks,
            dim=backbone and backbone.dim,
        )

    def replace(self, **changes: Any) -> Self:
        """This configuration with some settings changed; all settings are checked again."""
        return type(self)(**{**dict(self), **changes})

    def anywhere(self) -> Self:
        """This configuration with absolute paths, which hold from any folder."""
        named = {name: getattr(self, name, None) for name in _PLACES}
        return self.replace(
            **{
                name: os.path.abspath(os.path.expanduser(place))
                for name, place in named.items()
                if place is not None and place not in _WORDS
            }
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary with every setting."""
        return self.model_dump()

    def recipe(self) -> dict[str, Any]:
        """The settings that decide a run's numbers: all except those of the machine."""
        return self.model_dump(exclude=set(self.machine_settings()))

    @classmethod
    def machine_settings(cls) -> tuple[str, ...]:
        """Names of the settings that may change when a run is resumed, as they do not affect its numbers."""
        return tuple(name for name, field in cls.model_fields.items() if MACHINE in field.metadata)

    @classmethod
    def with_added(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """JSON-ready settings of a run, with the defaults of those that its version did not have."""
        settings = dict(settings)
        for name, field in cls.model_fields.items():
            if ADDED in field.metadata:
                default = field.get_default()
                if isinstance(default, Settings):  # of which a later version may have more
                    settings[name] = {**default.model_dump(), **settings.get(name, {})}
                else:
                    settings.setdefault(name, default)
        return settings

    @classmethod
    def help_texts(cls) -> dict[str, str]:
        """The name of every setting, and its help text."""
        return {name: field.description or "" for name, field in cls.model_fields.items()}


CONFIGS: dict[str, type[Config]] = {}
"""The configuration class of every method. The files of the methods beside this one fill it, and
`methods.register` adds methods that are not built in."""


def register_config(method: str, cls: type[Config]) -> None:
    """Make `cls` the configuration of a method. A different class for a known method is an error."""
    if CONFIGS.setdefault(method, cls) is not cls:
        raise ValueError(
            f"method {method!r} already has the configuration {CONFIGS[method].__name__}, "
            f"got {cls.__name__}; choose a different name"
        )


def config_class(method: str) -> type[Config]:
    """The configuration class of a method."""
    if method not in CONFIGS:
        raise ConfigError(f"method must be one of {', '.join(sorted(CONFIGS))}, got {method!r}", "method")
    return CONFIGS[method]


def from_json(values: Any) -> Config:
    """The configuration that `to_json` wrote. Missing, unknown and ill-typed keys are errors."""
    if not isinstance(values, dict) or not isinstance(values.get("method"), str):
        raise ConfigError("a configuration must be a JSON object with a key 'method'")
    cls = config_class(values["method"])
    # A setting that an earlier version did not have has its default: it affects no number of that run.
    values, free = cls.with_added(values), cls.machine_settings()
    missing = [name for name in cls.model_fields if name not in values and name not in free]
    if missing:
        raise ConfigError(
            f"the configuration lacks {', '.join(missing)}; "
            "it was written by a different version of this package"
        )
    return cls(**values)
