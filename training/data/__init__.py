"""Data for Generalized Category Discovery: from a folder on disk to batches.

Read the files in the order in which data passes through them:

1. `catalog`       a root on disk -> images in a fixed order with their class index (`read_images`)
2. `splits`        known and novel classes, the labelled half of the known images, labels (`class_split`)
3. `transforms`    the train and test transforms of the protocol
4. `pixel_cache`   decoded and resized images on disk, which can take the place of files (`pixel_cache`)
5. `gcd`           all of this as one object (`open_data` -> `GCDData`)
6. `loaders`       batches with keyed random draws (`train_loader`, `labelled_loader`, `evaluation_loader`)
7. `trunk_cache`   tokens of the frozen trunk on disk, which can take the place of images (`trunk_cache`)
8. `batches`       all loaders of a run, over images or over cached tokens (`batches`)
9. `rows`          a batch as rows on the device of the student (`rows_of`)

`download` fetches a data set, and `verification` opens all files of a root and compares it with the published
counts (`verify`). `image_files` reads an image, and the list of files that a run leaves out. `cache` has
what both caches share. `pickles` reads published pickle files safely. Published facts about the data sets
(`SPECS`) are in `config/datasets.py`.

>>> import torch
>>> data = open_data("digits")
>>> loader = train_loader(data, batch_size=64, seed=0)
>>> for batch in loader.epoch(0, start=len(loader) - 1):  # resumed at the last batch
...     rows = torch.cat(batch.views)  # all first views, then all second views
...     mask = batch.mask.repeat(2)
>>> rows.shape, mask.shape
(torch.Size([128, 1, 16, 16]), torch.Size([128]))
>>> sum(len(batch.label) for batch in evaluation_loader(data))
1347
"""

from eagc_ops.training.config.datasets import SPECS
from eagc_ops.training.data.catalog import Images, read_images
from eagc_ops.training.data.gcd import GCDData, ImageSubset, open_data
from eagc_ops.training.data.loaders import (
    Batch,
    KeyedViews,
    TrainLoader,
    draw_key,
    evaluation_loader,
    train_loader,
)
from eagc_ops.training.data.verification import verify

__all__ = [
    "SPECS",
    "Batch",
    "GCDData",
    "ImageSubset",
    "Images",
    "KeyedViews",
    "TrainLoader",
    "draw_key",
    "evaluation_loader",
    "open_data",
    "read_images",
    "train_loader",
    "verify",
]
