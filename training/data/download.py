"""Fetch a published data set with torchvision, and compare it with its published checksum."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
from pathlib import Path
from typing import NamedTuple

from torchvision.datasets import CIFAR10, CIFAR100, FGVCAircraft
from torchvision.datasets.utils import download_and_extract_archive

from eagc_ops.app.files import naming_full_disks
from eagc_ops.app.locks import lock
from eagc_ops.training.config.datasets import SPECS

__all__ = ["download"]


class _Archive(NamedTuple):
    url: str
    md5: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def _archive(name: str) -> _Archive:
    """Where torchvision finds an archive. It has no checksum of Aircraft; ours is the publisher's."""
    if name == "aircraft":
        return _Archive(FGVCAircraft._URL, SPECS[name].archive_md5)
    official = {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]
    return _Archive(official.url, official.tgz_md5)


def download(name: str, root: str | Path) -> Path | None:
    """Fetch and unpack a data set below `root`, completely or not at all. The archive is deleted.

    Returns its folder; None if that folder is there already: then nothing is changed.
    """
    root, archive = Path(root).expanduser(), _archive(name)
    home = root / SPECS[name].inner
    if home.exists():
        return None
    partial = root / f"{home.name}.partial"
    with lock(root / f".{home.name}.lock", f"the download of {name} to {root}", wait=True):
        if home.exists():  # another process was faster
            return None
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with naming_full_disks(root / archive.file, 2 * SPECS[name].archive_bytes):
                download_and_extract_archive(
                    archive.url, root, partial, archive.file, archive.md5, remove_finished=True
                )
            os.replace(partial / home.name, home)
        except (urllib.error.URLError, http.client.HTTPException) as error:
            raise OSError(
                f"{SPECS[name].title} cannot be fetched from {archive.url} "
                f"({getattr(error, 'reason', error)}); fetch the archive elsewhere and unpack it in {root}"
            ) from error
        except RuntimeError as error:  # torchvision's word for a wrong checksum
            (root / archive.file).unlink(missing_ok=True)
            raise ValueError(
                f"what {archive.url} sent does not have the published md5 {archive.md5}: the download was "
                "cut off, or the file was changed; nothing is kept, try again"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return home
