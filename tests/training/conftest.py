"""What the tests of runs share."""

import pytest
import small_runs


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Settings that name a small image folder, its split and weights; see `small_runs.write_files`."""
    return small_runs.write_files(tmp_path_factory.mktemp("images"))
