"""`eagc open`: who may ask, and for what."""

import contextlib
import csv
import http.client
import io
import json
import os
import threading
from pathlib import Path

import pytest
from discoveries import write_discovery
from PIL import Image

from eagc_ops.app import cli
from eagc_ops.discovery import refinement
from eagc_ops.discovery.page import image_paths, write_page
from eagc_ops.discovery.serving import PageServer


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("discovery")
    write_discovery(home, images=40)
    write_page(home / "out")
    (home / "out" / "secret.txt").write_text("secret")
    (home / "secret.txt").write_text("secret")
    return home


@pytest.fixture
def server(home):
    (home / "out" / "edits.json").unlink(missing_ok=True)
    with PageServer(home / "out") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, name, method="GET", body=None, token=None, **headers):
    """(status, headers, content); `name` goes out as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    connection.putrequest(method, f"/{token or server.token}/{name}", skip_host="Host" in headers)
    for key, value in {**({"Content-Length": str(len(body))} if body is not None else {}), **headers}.items():
        connection.putheader(key, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_it_gives_the_page_its_thumbnails_and_its_images(home, server):
    for name in ("", "discovered.html"):
        status, headers, content = ask(server, name)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert content == (home / "out" / "discovered.html").read_bytes()
    for file in (home / "out" / "discovered_files").iterdir():
        assert ask(server, f"discovered_files/{file.name}")[2] == file.read_bytes()
    for number, file in enumerate(image_paths(home / "out")):
        status, headers, content = ask(server, f"image/{number}")
        assert (status, headers["Content-Type"]) == (200, "image/jpeg")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in headers["Content-Security-Policy"]
        with open(file, "rb") as opened:
            assert content == opened.read()
    assert ask(server, "image/40")[0] == 404


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    "name",
    [
        "secret.txt",
        "categories.json",
        "assignments.csv",
        "../secret.txt",
        "%2e%2e/secret.txt",
        "discovered_files/../secret.txt",
        "discovered_files/..%2fsecret.txt",
        "discovered_files/%2e%2e/categories.json",
        "discovered_files/",
        "image/../secret.txt",
        "shown/../secret.txt",
        "shown/99",
        "image/-1",
        "image/0/../../secret.txt",
        "image//etc/passwd",
        "/etc/passwd",
        "edits.json/../secret.txt",
    ],
)
def test_no_address_is_a_path(server, name):
    for method in ("GET", "PUT", "POST"):
        status, _, content = ask(server, name, method, b"{}" if method != "GET" else None)
        assert status == 404
        assert b"secret" not in content


def test_only_who_knows_the_token_is_answered(server):
    for token in ("x", server.token[:-1], server.token + "x", server.token.swapcase()):
        for method in ("GET", "PUT", "POST"):
            assert ask(server, "edits.json", method, b"{}", token=token)[0] == 403
    with PageServer(server.folder) as other:
        assert other.token != server.token


def test_other_hosts_and_other_pages_are_refused(home, server):
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        assert ask(server, "", Host=host)[0] == 403
    for origin in (
        "http://evil.example",
        "null",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port + 1}",
    ):
        assert ask(server, "edits.json", "PUT", b"{}", Origin=origin, If_Match="*")[0] == 403
    assert not (home / "out" / "edits.json").exists()
    assert ask(server, "", Host=f"localhost:{port}", Origin=f"http://localhost:{port}")[0] == 200


def test_edits_are_saved_unless_another_window_was_faster(home, server):
    discovery = json.loads((home / "out" / "categories.json").read_text())["discovery"]
    assert ask(server, "edits.json")[0] == 204
    first = json.dumps({"discovery": discovery, "names": {"new-1": "ü"}}, ensure_ascii=False).encode()
    status, headers, _ = ask(server, "edits.json", "PUT", first, If_Match="*")
    assert status == 204
    assert (home / "out" / "edits.json").read_bytes() == first
    tag = headers["ETag"]
    assert ask(server, "edits.json")[1]["ETag"] == tag
    assert ask(server, "edits.json", "PUT", b"{}", If_Match="*")[0] == 412
    second = first.replace("ü".encode(), b"heron")
    assert ask(server, "edits.json", "PUT", second, If_Match=tag)[0] == 204
    assert ask(server, "edits.json", "PUT", first, If_Match=tag)[0] == 412
    tag = ask(server, "edits.json")[1]["ETag"]
    for wrong, expected in ((b"{", 400), (b"[]", 400), (b'{"discovery": "00"}', 409)):
        assert ask(server, "edits.json", "PUT", wrong, If_Match=tag)[0] == expected
    assert (home / "out" / "edits.json").read_bytes() == second


def test_too_much_is_refused(server):
    assert ask(server, "edits.json", "PUT", Content_Length=str(10**12))[0] == 413
    assert ask(server, "edits.json", "PUT", Content_Length="many")[0] == 413


def test_a_new_answer_keeps_the_edits_it_was_made_of(home, server, monkeypatch):
    edits = home / "out" / "edits.json"
    edits.write_text("{}")
    taken = []

    def refine(folder, file, say):
        taken.append((folder, file.read_text()))
        return {"round": 3, "changes": {"sentence": "2 images were corrected."}}

    monkeypatch.setattr(refinement, "refine", refine)
    status, _, content = ask(server, "refine", "POST", b"")
    assert (status, content) == (200, b"2 images were corrected.")
    assert taken == [(home / "out", "{}")]
    assert not edits.exists()
    assert (home / "out" / "edits-3.json").read_text() == "{}"


def test_what_is_wrong_is_said_in_a_line(home, server):
    """This discovery has no features."""
    status, _, content = ask(server, "refine", "POST", b"")
    assert status == 409
    assert b"\n" not in content and content
    with open(home / "out" / "assignments.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 40


def test_an_image_that_no_browser_shows_comes_as_jpeg(home, server):
    """Upright, and not larger than a screen; the file itself is given out as it is."""
    file = image_paths(home / "out")[5]
    os.rename(file, f"{file}.away")
    try:
        exif = Image.Exif()
        exif[0x0112] = 6  # lies on its side
        Image.new("RGB", (3200, 1600), "red").save(file, "TIFF", exif=exif)
        before = Path(file).read_bytes()
        assert ask(server, "image/5")[2] == before
        status, headers, content = ask(server, "shown/5")
        assert (status, headers["Content-Type"]) == (200, "image/jpeg")
        with Image.open(io.BytesIO(content)) as shown:
            assert (shown.format, shown.size) == ("JPEG", (800, 1600))
        Path(file).write_bytes(b"no picture")
        assert ask(server, "shown/5")[0] == 404
    finally:
        os.replace(f"{file}.away", file)


def test_an_image_that_is_gone(home, server):
    file = image_paths(home / "out")[7]
    os.rename(file, f"{file}.away")
    try:
        assert ask(server, "image/7")[0] == 404
    finally:
        os.rename(f"{file}.away", file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere"], "FOUND nowhere/categories.json: no such file; name the output folder of a complete"),
        (["out", "--port", "70000"], "--port: must be a number from 0 to 65535, got 70000"),
    ],
)
def test_wrong_options(home, monkeypatch, capsys, options, message):
    monkeypatch.chdir(home)
    with contextlib.suppress(SystemExit):  # argparse leaves by itself
        assert cli.main(["open", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_port_that_is_taken(home, server, capsys):
    assert cli.main(["open", str(home / "out"), "--port", str(server.server_port), "--no-browser"]) == 2
    assert f"--port {server.server_port} cannot be used" in capsys.readouterr().err
