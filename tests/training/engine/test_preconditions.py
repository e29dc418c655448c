"""What is known of a run before it starts: sizes, weights by their headers, the run it starts from."""

import pytest
import torch
from run_facts import some_facts
from safetensors.torch import save_file

from eagc_ops.app.places import PlaceError
from eagc_ops.training import runs
from eagc_ops.training.config import ConfigError, Sizes, resolve
from eagc_ops.training.engine.checkpoint import save_checkpoint
from eagc_ops.training.engine.preconditions import check_run, starting_checkpoint
from eagc_ops.training.engine.run_folder import RunFolder


def test_a_run_that_can_start_is_let_through(tmp_path):
    weights = tmp_path / "w.safetensors"
    save_file({"x": torch.zeros(3)}, weights)
    config = resolve(weights=str(weights), trunk_cache=str(tmp_path / "cache"), k=10)
    before = sorted(tmp_path.iterdir())
    check_run(config, tmp_path / "new" / "run")
    (tmp_path / "empty").mkdir()
    check_run(config, tmp_path / "empty")
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "empty"])


def test_k_is_between_the_known_classes_and_the_images():
    for k in (5, 1797, "estimate", None):
        check_run(resolve(k=k))
    for k, message in ((4, "k must be >= 5"), (1798, "k must be <= 1,797, the number of images, got 1798")):
        with pytest.raises(ConfigError, match=message):
            check_run(resolve(k=k))


def test_sizes_that_are_not_known_refuse_nothing():
    config = resolve("sptnet", k=3, trainable_blocks=99, pca_k=999, subspace="pca", batch_size=4096)
    config.check_sizes(Sizes())
    with pytest.raises(ConfigError, match="k must be >= 4"):
        config.check_sizes(Sizes(known=4))
    with pytest.raises(ConfigError, match="trainable_blocks must be <= 12, the blocks of vit_digits, got 99"):
        config.check_sizes(Sizes(blocks=12))


def test_python_callers_meet_the_same_checks(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "Experiment", lambda *_: pytest.fail("opened"))
    (tmp_path / "file").touch()
    for config, output, message in (
        (resolve(k=3), tmp_path / "run", "^k must be >= 5"),
        (resolve(), tmp_path / "file", "^output .*file is a file; name a folder"),
        (resolve(), tmp_path, "^output .* is not an empty folder"),
        (resolve("sptnet"), tmp_path / "run", "^init is missing"),
        (resolve(trunk_cache=str(tmp_path / "file")), tmp_path / "run", "^trunk_cache .*file is a file"),
    ):
        with pytest.raises(ValueError, match=message):
            runs.train(config, output)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Headers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 50, -1, -5])
def test_weights_that_were_cut_short_are_refused_by_the_header(cut, tmp_path):
    file = tmp_path / "w.safetensors"
    save_file({"x": torch.zeros(3), "y": torch.zeros(2, 2)}, file)
    check_run(resolve(weights=str(file)))
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(PlaceError, match=r"weights .*w\.safetensors: cannot be read, perhaps an incomplete"):
        check_run(resolve(weights=str(file)))


def test_a_pth_that_was_cut_short_is_refused(tmp_path):
    file = tmp_path / "w.pth"
    torch.save({"x": torch.zeros(300)}, file)
    check_run(resolve(weights=str(file)))
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(PlaceError, match="it ends too early"):
        check_run(resolve(weights=str(file)))


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b'{"x": 3}', b'{"x": {"data_offsets": []}}', b'{"x": {"data_offsets": [0, "a"]}}']
)
def test_a_header_of_nonsense_is_refused_too(header, tmp_path):
    file = tmp_path / "w.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(PlaceError, match="cannot be read"):
        check_run(resolve(weights=str(file)))


# The run to start from ------------------------------------------------------------------------------------


def start(tmp_path, **changes):
    """A complete run of SimGCD; its checkpoints say what `changes` say."""
    config = resolve(**changes)
    folder = RunFolder.create(tmp_path / "start", config, some_facts())
    for file in (folder.last, folder.best):
        save_checkpoint(file, {"x": torch.zeros(1)}, {"identity": config.recipe()})
    folder.finish({"headline": config.headline})
    return folder


@pytest.mark.parametrize("headline", ["last", "best"])
def test_a_folder_stands_for_the_checkpoint_of_its_headline(headline, tmp_path):
    folder = start(tmp_path, headline=headline)
    config = resolve("sptnet", init=str(folder.path))
    assert starting_checkpoint(config) == getattr(folder, headline)
    assert starting_checkpoint(config.replace(init=str(folder.best))) == folder.best


def test_a_start_on_other_data_is_refused_by_its_header(tmp_path):
    folder = start(tmp_path, dataset="cub")
    with pytest.raises(ConfigError, match=r"was trained on cub, but this run has dataset='digits'"):
        check_run(resolve("sptnet", init=str(folder.last)), tmp_path / "run")
