"""What several test files of discovery begin from."""

import photographs
import pytest
import small_runs


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with photographs to discover in, and weights of a small encoder."""
    home = tmp_path_factory.mktemp("home")
    photographs.write_photographs(home / "photos")
    small_runs.write_files(home / "weights")
    return home
