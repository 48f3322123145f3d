"""The help of LibreOffice in two languages as parallel text: fetching, reading and aligning it.

Debian and Ubuntu publish the help as one package a language (MPL-2.0, a few MB each). A help page has the same file
name in every language, and a paragraph of a page the same id, so the translations are aligned without guessing.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

LICENCE = "MPL-2.0 (copyright the LibreOffice contributors; see usr/share/doc in the packages)"
UPDATE_SECONDS = 180
ATTEMPTS = 3

PARAGRAPHS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
CODE_CLASSES = {"code", "codeintable", "smathcode"}


class HelpPage(HTMLParser):
    """Collects the paragraphs of one help page: `paragraphs` maps id to text, `code` has the ids of program text.

    A page holds variants for operating systems and programs side by side, all hidden, and shows one by script; of these
    the one for everybody, whose id begins with "default", is taken.
    """

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.paragraphs = {}
        self.code = set()
        self._id = None
        self._text = []
        self._spans = []  # for each open span: does it hide its text?
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag in PARAGRAPHS:
            self._id = attributes.get("id") or ""
            self._text = []
            self._spans = []
            if attributes.get("class") in CODE_CLASSES:
                self.code.add(self._id)
        elif tag == "span":
            self._spans.append("hidden" in attributes and not (attributes.get("id") or "").startswith("default"))
        elif tag == "br":
            self._text.append(" ")

    def handle_endtag(self, tag):
        if tag in PARAGRAPHS and self._id is not None:
            if self._id.startswith(("par_", "hd_")):
                # an embedded page may repeat an id; the page's own paragraph comes first
                self.paragraphs.setdefault(self._id, " ".join("".join(self._text).split()))
            self._id = None
        elif tag == "span" and self._spans:
            self._spans.pop()

    def handle_data(self, data):
        if not any(self._spans):
            self._text.append(data)


def align(source_pages, target_pages, dropped):
    """Yield `(page, source, target)` for each paragraph that a page has in both languages, except program text.

    `source_pages` and `target_pages` map a page's name to its HTML; `dropped` counts what is left out, by reason.
    """
    for name in sorted(source_pages):
        source = HelpPage(source_pages[name])
        target = HelpPage(target_pages.get(name, ""))
        for paragraph, text in source.paragraphs.items():
            if paragraph not in target.paragraphs:
                dropped["not in both languages"] += 1
            elif paragraph in source.code:
                dropped["program text"] += 1
            else:
                yield name, text, target.paragraphs[paragraph]


def package_name(language):
    return "libreoffice-help-" + {"en": "en-us", "pt-BR": "pt-br"}.get(language, language)


def run_with_limit(command, seconds, cwd):
    """Run a command, showing it and its output; True if it ended well within the time, else nothing of it is left."""
    print("+ " + " ".join(command), file=sys.stderr, flush=True)
    process = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    try:
        return process.wait(timeout=seconds) == 0
    except subprocess.TimeoutExpired:
        print(f"  not finished after {seconds} s", file=sys.stderr)
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def fetch(packages, directory):
    """Download Debian packages into `directory` without root and without touching the system; return their paths.

    apt-get is given lists and a cache of its own. What was downloaded before is used as it is. Raises ValueError when
    the packages cannot be had.
    """
    directory = Path(directory).resolve()
    directory.mkdir(parents=True, exist_ok=True)

    def present():
        return [next(iter(sorted(directory.glob(f"{package}_*.deb"))), None) for package in packages]

    if all(present()):
        return present()
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ValueError("apt-get and dpkg-deb are needed to fetch the LibreOffice help, and are not on this machine.")
    apt, incoming = directory / "apt", directory / "incoming"
    for folder in (apt / "lists/partial", apt / "cache/archives/partial", apt / "log", incoming):
        folder.mkdir(parents=True, exist_ok=True)
    # Given with -c, so that it is read after the system's own settings. Those may run commands after an update (clean
    # the system's cache, tell the desktop), switch package descriptions on, or name a user who cannot write here.
    configuration = apt / "apt.conf"
    configuration.write_text(
        "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n"
        '#clear Acquire::Languages;\nAcquire::Languages { "none"; };\n'
        f'Dir::State::Lists "{apt}/lists";\nDir::Cache "{apt}/cache";\nDir::Log "{apt}/log";\n'
        'APT::Sandbox::User "root";\nAcquire::Retries "2";\nAcquire::http::Timeout "30";\nAcquire::https::Timeout "30";\n'
    )
    for _ in range(ATTEMPTS):
        # An update that fails for one of several sources may still have brought the list that matters.
        run_with_limit(["apt-get", "-c", str(configuration), "update"], UPDATE_SECONDS, incoming)
        if run_with_limit(["apt-get", "-c", str(configuration), "download", *packages], UPDATE_SECONDS, incoming):
            for package in incoming.glob("*.deb"):
                package.replace(directory / package.name)
            break
    if not all(present()):
        raise ValueError(
            f"apt-get could not download {' and '.join(packages)}: see its messages above; is there a network, and do "
            "the package sources of this machine have them?"
        )
    shutil.rmtree(apt)
    shutil.rmtree(incoming)
    return present()


def read_pages(package, directory):
    """Unpack one help package below `directory` and return its pages, `{name: HTML}`, and the package's version."""
    shutil.rmtree(directory, ignore_errors=True)
    Path(directory).mkdir(parents=True)
    if subprocess.run(["dpkg-deb", "-x", str(package), str(directory)], stdin=subprocess.DEVNULL).returncode != 0:
        Path(package).unlink()
        raise ValueError(f"{package} is damaged and was removed; run again to download it anew.")
    pages = {}
    for path in Path(directory).glob("usr/share/libreoffice/help/*/text/**/*.html"):
        # the name without the language's folder: text/swriter/guide/...
        pages["/".join(path.relative_to(directory).parts[5:])] = path.read_text(encoding="utf-8", errors="replace")
    shutil.rmtree(directory)
    if not pages:
        raise ValueError(f"{package} holds no help pages in the form known here (usr/share/libreoffice/help/*/text).")
    version = unquote(re.sub(r".*?_(.*)_[^_]*\.deb", r"\1", Path(package).name))
    return pages, version


def read(source, target, packages, dropped):
    """Pairs of the help in two languages, and what the manifest says about where they come from.

    `packages` is the folder in which downloaded packages are kept. Raises ValueError.
    """
    names = [package_name(language) for language in (source, target)]
    versions, pages = {}, []
    for name, path in zip(names, fetch(names, packages)):
        found, versions[name] = read_pages(path, Path(packages) / "unpacked")
        pages.append(found)
    print(f"{len(pages[0])} help pages; aligning them by paragraph ...", file=sys.stderr)
    about = {
        "corpus": "LibreOffice help out of the Debian packages named here, aligned by paragraph id",
        "licence": LICENCE,
        "packages": versions,
    }
    return list(align(*pages, dropped)), about
