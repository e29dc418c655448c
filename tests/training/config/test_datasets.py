"""The facts about the data sets agree with the rooms that use them."""

import pytest

from eagc_ops.training.config import DATASETS, SPECS, resolve
from eagc_ops.training.data import catalog, open_data
from eagc_ops.training.data.splits import class_split
from eagc_ops.training.data.transforms import TRANSFORMS


def test_every_data_set_has_one_reader():
    assert {*catalog._READERS, *catalog._BUNDLED} == set(DATASETS)
    assert set(catalog._BUNDLED) == {name for name in DATASETS if SPECS[name].bundled}


def test_every_data_set_has_transforms():
    assert all(SPECS[name].transforms in TRANSFORMS for name in DATASETS)


@pytest.mark.parametrize("name", DATASETS)
def test_a_split_file_is_asked_for_where_one_is_needed(name):
    if SPECS[name].needs_split_file:
        assert SPECS[name].split_sha256 or name == "folder"
        with pytest.raises(FileNotFoundError, match="split_file"):
            class_split(name)
    else:
        split = class_split(name)
        assert (len(split.known), len(split.novel)) == (SPECS[name].known, SPECS[name].novel)


def test_a_data_set_with_an_encoder_of_its_own_is_trained_with_it():
    for name in DATASETS:
        assert (resolve(dataset=name).backbone == SPECS[name].own_encoder) == (
            SPECS[name].own_encoder is not None
        )


def test_images_look_as_the_specification_says():
    spec, data = SPECS["digits"], open_data("digits")
    image = data.test_transform(data.labelled[0][0])
    assert tuple(image.shape) == (spec.channels, spec.image_size, spec.image_size) == (1, 16, 16)
    assert (data.channels, data.image_size) == (1, 16)
