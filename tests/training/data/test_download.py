"""`eagc data download` from a mirror on the loopback address, with small archives of the official layout."""

import functools
import hashlib
import http.server
import io
import tarfile
import threading

import pytest
from commands import call
from torchvision.datasets import CIFAR10, FGVCAircraft

from eagc_ops.training.config import DATASETS, SPECS
from eagc_ops.training.data import download as module


def archive(folder: str) -> bytes:
    """A .tar.gz with two files in `folder`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("data_batch_1", "data/images/a.jpg"):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = 1000
            tar.addfile(entry, io.BytesIO(name.encode().ljust(1000)))
    return buffer.getvalue()


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A folder that is served, and the requests for its files; torchvision's URLs point there."""
    served, asked = tmp_path / "served", []
    served.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, *_):
            asked.append((self.command, self.path))

        log_error = log_request

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(served))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    place = f"http://127.0.0.1:{server.server_port}"
    for name, official, url in (("cifar10", CIFAR10, "url"), ("aircraft", FGVCAircraft, "_URL")):
        monkeypatch.setattr(official, url, f"{place}/{getattr(official, url).rpartition('/')[2]}")
        content = archive(SPECS[name].inner)
        (served / module._archive(name).file).write_bytes(content)
        if name == "cifar10":
            monkeypatch.setattr(official, "tgz_md5", hashlib.md5(content).hexdigest())
    yield served, asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_archive_is_fetched_compared_and_unpacked_once(mirror, tmp_path, capsys):
    root, asked = tmp_path / "new" / "data", mirror[1]
    code, out, _ = call(capsys, "data", "download", "cifar10", "--root", str(root))
    assert code == 0, out
    assert "CIFAR-10: an archive of 170 MB" in out
    assert [file.name for file in root.iterdir()] == ["cifar-10-batches-py"]  # neither archive nor lock
    assert (root / "cifar-10-batches-py" / "data_batch_1").read_bytes().startswith(b"data_batch_1 ")
    count = len(asked)
    code, out, _ = call(capsys, "data", "download", "cifar10", "--root", str(root))
    assert (code, len(asked)) == (0, count)
    assert f"{root / 'cifar-10-batches-py'} is there already: nothing is fetched" in out


def test_a_cut_download_goes_on_from_nothing(mirror, tmp_path, capsys):
    """What a killed process left is not taken for the data set."""
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"half")
    (tmp_path / "cifar-10-batches-py.partial").mkdir()
    (tmp_path / "cifar-10-batches-py.partial" / "old").touch()
    assert call(capsys, "data", "download", "cifar10", "--root", str(tmp_path))[0] == 0
    assert {file.name for file in tmp_path.iterdir()} == {"served", "cifar-10-batches-py"}
    assert not (tmp_path / "cifar-10-batches-py" / "old").exists()


@pytest.mark.parametrize("name", ["cifar10", "aircraft"])
def test_a_wrong_checksum_is_one_line_and_leaves_nothing(name, mirror, tmp_path, capsys):
    file = mirror[0] / module._archive(name).file
    file.write_bytes(file.read_bytes()[:-20])
    root = tmp_path / "data"
    code, _, err = call(capsys, "data", "download", name, "--root", str(root))
    error = err.splitlines()[-1]  # after torchvision's bar
    assert code == 2
    assert error.startswith("eagc data: what http://127.0.0.1")
    assert f"does not have the published md5 {module._archive(name).md5}" in error
    assert not root.exists() or list(root.iterdir()) == []


def test_no_network_is_one_line(mirror, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    code, _, err = call(capsys, "data", "download", "cifar10", "--root", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert "CIFAR-10 cannot be fetched from http://127.0.0.1:9/cifar-10-python.tar.gz (" in err


@pytest.mark.parametrize("name", [name for name in DATASETS if not SPECS[name].archive_bytes])
def test_the_others_say_where_they_are(name, capsys):
    code, out, _ = call(capsys, "data", "download", name)
    assert (code, out.count("\n")) == (0, 1)
    assert SPECS[name].layout in out and (SPECS[name].source or "is not fetched") in out


def test_the_official_archives(monkeypatch):
    """The URLs and checksums are torchvision's; Aircraft's checksum, which it lacks, is the publisher's."""
    assert module._archive("cifar10") == (CIFAR10.url, CIFAR10.tgz_md5)
    assert module._archive("cifar10").file == CIFAR10.filename
    assert module._archive("aircraft").url.endswith("fgvc-aircraft-2013b.tar.gz")
