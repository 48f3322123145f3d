"""Downloads go on where they broke off, are tried again, verified and unpacked within their folder."""

import gzip
import hashlib
import io
import json
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import download
import prepare
import pytest
from common import run_as_script
from corpus_recipes import PARTS, load_recipe, read_recipe, recipe_names
from download import fetch, inside, unpack
from parallel_text import Corpus

CONTENT = bytes(range(256)) * 2000


class Server(ThreadingHTTPServer):
    """Serves CONTENT as /file; `faults` are the troubles of the next answers; `asked` are the Range headers."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults, self.asked, self.etag = [], [], '"1"'
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        fault = self.server.faults.pop(0) if self.server.faults else None
        if self.path != "/file" or isinstance(fault, int):
            return self.send_error(fault or 404)
        start = 0
        if wanted and self.headers.get("If-Range") == self.server.etag and fault != "no ranges":
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        if self.server.etag:
            self.send_header("ETag", self.server.etag)
        self.end_headers()
        body = CONTENT[start:]
        self.wfile.write(body[: len(body) // 2] if fault == "break off" else body)


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def entry(server, **more):
    return {"name": "file", "url": f"{server.url}/file", **more}


def test_a_broken_download_goes_on_where_it_broke_off(server, tmp_path):
    server.faults = ["break off", 503, "break off"]
    path = fetch(entry(server, md5=hashlib.md5(CONTENT).hexdigest(), bytes=len(CONTENT)), tmp_path, pause=0)
    assert path.read_bytes() == CONTENT
    half, rest = len(CONTENT) // 2, len(CONTENT) // 4
    assert server.asked == [None, f"bytes={half}-", f"bytes={half}-", f"bytes={half + rest}-"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_it_goes_on_in_a_later_run_too(server, tmp_path):
    server.faults = ["break off"] + [500] * (download.ATTEMPTS - 1)
    with pytest.raises(ValueError, match=r"5 attempts: the server answers 500 .* To place it by hand: get http.*/file as "):
        fetch(entry(server), tmp_path, pause=0)
    server.asked.clear()
    assert fetch(entry(server), tmp_path, pause=0).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT) // 2}-"]


@pytest.mark.parametrize("change", ["another file", "no validator", "no ranges", "too much there"])
def test_what_does_not_fit_is_fetched_anew(server, tmp_path, change):
    if change == "no validator":
        server.etag = ""
    server.faults = ["break off"] + [500] * (download.ATTEMPTS - 1)
    with pytest.raises(ValueError):
        fetch(entry(server), tmp_path, pause=0)
    if change == "another file":
        server.etag = '"2"'
    elif change == "no ranges":
        server.faults = ["no ranges"]
    elif change == "too much there":
        server.faults = [416]
    assert fetch(entry(server), tmp_path, pause=0).read_bytes() == CONTENT


@pytest.mark.parametrize("wrong", [{"bytes": 3}, {"md5": "0" * 32}, {"sha256": "0" * 64}])
def test_a_wrong_file_is_not_kept(server, tmp_path, wrong):
    with pytest.raises(ValueError, match="instead of .* not kept.*by hand"):
        fetch(entry(server, **wrong), tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_bytes(b"by hand")
    with pytest.raises(ValueError, match="instead of"):
        fetch(entry(server, **wrong), tmp_path)
    assert (tmp_path / "file").read_bytes() == b"by hand"


def test_a_file_that_is_not_there_is_not_asked_for_again(server, tmp_path):
    with pytest.raises(ValueError, match="the server answers 404 Not Found.*by hand"):
        fetch({"name": "file", "url": f"{server.url}/other"}, tmp_path, pause=0)
    assert len(server.asked) == 1


def test_no_network(tmp_path):
    with pytest.raises(ValueError, match="could not be fetched in 5 attempts: .*refused.* by hand: get http://127.0.0.1:9/f as"):
        fetch({"name": "file", "url": "http://127.0.0.1:9/f"}, tmp_path, pause=0)


def archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def test_only_what_is_wanted_is_unpacked_and_only_inside(tmp_path):
    packed = archive(tmp_path / "a.tgz", {"./in/x": b"1", "../escaped": b"2", "/tmp/escaped-too": b"3", "link": "/etc/passwd", "rest": b"4"})
    folder = tmp_path / "to"
    folder.mkdir()
    unpack(packed, ["in/x"], folder)
    assert [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()] == ["in/x"]
    assert not (tmp_path / "escaped").exists()
    with pytest.raises(ValueError, match="no regular file"):
        unpack(packed, ["link"], folder)
    with pytest.raises(ValueError, match="does not hold missing"):
        unpack(packed, ["missing"], folder)
    for name in ("../escaped", "/tmp/escaped-too", "a/../../b"):
        with pytest.raises(ValueError, match="outside of"):
            inside(folder, name)


def test_a_damaged_archive(tmp_path):
    packed = archive(tmp_path / "a.tgz", {"x": bytes(100_000), "y": CONTENT})
    packed.write_bytes(packed.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be unpacked.*remove it"):
        unpack(packed, ["x", "y"], tmp_path)
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_are_complete(name, tmp_path):
    recipe = load_recipe(name)
    assert {"title", "source", "target", "licence", "yields"} <= recipe.keys()
    names = [entry["name"] for entry in recipe.get("file", [])]
    assert len(set(names)) == len(names)
    there = {member for entry in recipe.get("file", []) for member in entry.get("members", [entry["name"]])}
    for entry in recipe.get("file", []):
        assert entry["url"].startswith("https://")
    assert recipe.get("settings", {}).keys() <= prepare.DEFAULTS.keys()
    for part in PARTS:
        assert recipe[part]
        for corpus in recipe[part]:
            assert "demo" in recipe or {corpus["source"], corpus["target"]} <= there
    with pytest.raises(ValueError, match=f"download.py {name} --to"):
        read_recipe(name, tmp_path)


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["download.py", *map(str, arguments)])
    download.main()


def content(kind, sentences):
    """A file of a corpus of that kind."""
    if kind == "seg":
        return "".join(f'<seg id="{n}"> {line} </seg>\n' for n, line in enumerate(sentences, start=1))
    lines = "".join(f"{line}\n" for line in sentences)
    if kind == "talks":
        title, rest = lines.split("\n", 1)
        return f"<url>http://x</url>\n<keywords>a</keywords>\n<talkid>1</talkid>\n<title>{title}</title>\n{rest}"
    return lines


def mirror_of(recipe, folder):
    """Small files of the same form as those of a recipe; returns the numbers of pairs by part."""
    files, counts = {}, {}
    for number, part in enumerate(PARTS):
        for corpus in recipe[part]:
            lines = [f"The house number {n} of {len(files)} is small." for n in range(5 * (3 - number))]
            counts[part] = counts.get(part, 0) + len(lines)
            kind = Corpus(folder / corpus["source"], folder / corpus["target"]).kind
            for side in ("source", "target"):
                text = content(kind, [f"{line} {side}" for line in lines]).encode()
                files[corpus[side]] = gzip.compress(text) if corpus[side].endswith(".gz") else text
    folder.mkdir()
    for entry in recipe["file"]:
        if "members" in entry:
            archive(folder / entry["name"], {member: files[member] for member in entry["members"]})
        else:
            (folder / entry["name"]).write_bytes(files[entry["name"]])
    return counts


@pytest.mark.parametrize("name", [name for name in recipe_names() if "demo" not in load_recipe(name)])
def test_a_recipe_on_local_files_of_the_same_form(tmp_path, monkeypatch, capsys, name):
    """Both commands, from the files as they would be downloaded to the data directory."""
    recipe = load_recipe(name)
    for entry in recipe["file"]:
        entry.pop("md5", None)
    monkeypatch.setattr(download, "load_recipe", lambda name: recipe)
    raw = tmp_path / "raw"
    counts = mirror_of(recipe, tmp_path / "mirror")
    run_main(monkeypatch, name, "--to", raw, "--from", tmp_path / "mirror")
    assert "sha256" in capsys.readouterr().out
    for entry in recipe["file"]:
        if "members" in entry:
            (raw / entry["name"]).unlink()  # what is unpacked is enough
    run_main(monkeypatch, name, "--to", raw, "--from", tmp_path / "mirror")
    monkeypatch.setattr(
        sys, "argv", ["prepare.py", "--recipe", name, "--raw", str(raw), "--out", str(tmp_path / "data"), "--merges", "20",
                      "--workers", "1"]
    )
    prepare.main()
    manifest = json.loads((tmp_path / "data" / "prepare.json").read_text("utf-8"))
    assert {part: pairs["read"] for part, pairs in manifest["pairs"].items()} == counts
    assert {part: pairs["kept"] for part, pairs in manifest["pairs"].items()} == counts
    assert manifest["languages"] == {"source": recipe["source"], "target": recipe["target"]}
    assert manifest["settings"]["merges"] == 20
    assert manifest["settings"]["max_ratio"] == recipe["settings"].get("max_ratio", 3.0)


def test_the_list_tells_of_every_recipe(monkeypatch, capsys):
    run_main(monkeypatch, "--list")
    told = capsys.readouterr().out
    for name in recipe_names():
        assert f"{name}: {load_recipe(name)['title']}" in told
    assert "https://www.statmt.org/wmt14/test-full.tgz" in told


def test_bad_input_is_one_sentence(tmp_path, monkeypatch):
    for arguments, sentence in (
        (["nothing"], "there is no recipe 'nothing'; there are demo.en-de, iwslt14.de-en"),
        (["multi30k.en-de", "--to", tmp_path / "x", "--from", tmp_path / "nowhere"], "cannot be copied: No such file.*by hand"),
        (["multi30k.en-de", "--to", tmp_path / "x", "--from", "ftp://x"], "folder or an address with http"),
    ):
        import re

        monkeypatch.setattr(sys, "argv", ["download.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            run_as_script(download.main)
        assert re.search(sentence, str(end.value.code)) and "\n" not in str(end.value.code)
