"""Fixtures that the tests of several rooms share."""

import pytest
import small_runs
from layouts import pictures  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Settings that name a small image folder, its split and weights; see `small_runs.write_files`."""
    return small_runs.write_files(tmp_path_factory.mktemp("images"))
