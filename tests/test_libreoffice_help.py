"""Help pages: which paragraphs are read, which variants, and how two languages are aligned."""

from collections import Counter

import pytest
from libreoffice_help import HelpPage, align, fetch, package_name, read_pages


def page(body):
    return f"<html><head><title>Not text</title></head><body>{body}</body></html>"


def test_paragraphs_and_headings_with_ids_are_read_as_plain_text():
    html = page(
        '<h1 id="hd_id1" dir="auto"><a name="x"></a><a href="y.html">Cell\n Ranges</a></h1>'
        '<p id="par_id2" class="paragraph">Press <span class="keycode">Ctrl</span>+A &amp; go&nbsp;on.<br>Done.</p>'
        '<p dir="auto">no id</p><p id="bm_module">not text</p>'
    )
    assert HelpPage(html).paragraphs == {"hd_id1": "Cell Ranges", "par_id2": "Press Ctrl+A & go on. Done."}


def test_of_hidden_variants_the_default_one_is_read():
    html = page(
        '<p id="par_id1">Hold <span id="swlnsys" class="switchinline">'
        '<span hidden="true" id="MAC1" class="MAC"><span class="emph">Command</span></span>'
        '<span hidden="true" id="default1"><span class="emph">Ctrl</span></span></span> down.</p>'
    )
    assert HelpPage(html).paragraphs == {"par_id1": "Hold Ctrl down."}


def test_a_hidden_variant_without_default_leaves_nothing():
    html = page('<p id="par_id1">Quit<span hidden="true" class="MAC"> now</span>.</p>')
    assert HelpPage(html).paragraphs == {"par_id1": "Quit."}


def test_the_first_paragraph_of_an_id_stays():
    assert HelpPage(page('<p id="par_1">own</p><p id="par_1">embedded</p>')).paragraphs == {"par_1": "own"}


def test_an_unclosed_span_hides_nothing_beyond_its_paragraph():
    html = page('<p id="par_1">a<span hidden="true">b</p><p id="par_2">c</p>')
    assert HelpPage(html).paragraphs == {"par_1": "a", "par_2": "c"}


def test_alignment_by_page_and_id():
    english = {
        "text/a.html": page('<p id="par_1">One</p><p id="par_2">Two</p><p id="par_3" class="code">x = 1</p>'),
        "text/b.html": page('<p id="par_1">Another one</p>'),
    }
    german = {
        "text/a.html": page('<p id="par_3" class="code">x = 1</p><p id="par_1">Eins</p><p id="par_9">Neun</p>'),
        "text/c.html": page('<p id="par_1">Ein anderes</p>'),
    }
    dropped = Counter()
    assert list(align(english, german, dropped)) == [("text/a.html", "One", "Eins")]
    assert dropped == {"not in both languages": 2, "program text": 1}


def test_package_names():
    assert [package_name(language) for language in ("en", "de", "pt-BR")] == [
        "libreoffice-help-en-us", "libreoffice-help-de", "libreoffice-help-pt-br",
    ]  # fmt: skip


def test_without_apt_get_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="apt-get and dpkg-deb are needed"):
        fetch(["libreoffice-help-de"], tmp_path)


def test_packages_that_are_there_are_not_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    kept = tmp_path / "libreoffice-help-de_4%3a7.4.7-1_all.deb"
    kept.write_bytes(b"")
    assert fetch(["libreoffice-help-de"], tmp_path) == [kept]


def test_a_failing_download_is_tried_again_and_then_told(tmp_path, monkeypatch, capfd):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("apt-get", "dpkg-deb"):
        (programs / name).write_text("#!/bin/sh\necho no network\nexit 100\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    with pytest.raises(ValueError, match="could not download libreoffice-help-de"):
        fetch(["libreoffice-help-de"], tmp_path / "packages")
    assert capfd.readouterr().err.count(" download libreoffice-help-de") == 3
    assert not list((tmp_path / "packages").glob("*.deb"))


def test_a_damaged_package_is_removed(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dpkg-deb").write_text("#!/bin/sh\nexit 2\n")
    (programs / "dpkg-deb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    package = tmp_path / "libreoffice-help-de_1_all.deb"
    package.write_bytes(b"cut off")
    with pytest.raises(ValueError, match="damaged"):
        read_pages(package, tmp_path / "unpacked")
    assert not package.exists()
