"""Fetch the files of a corpus that has a recipe, verify them, and unpack what the recipe needs."""

import argparse
import hashlib
import http.client
import json
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections import Counter
from pathlib import Path, PurePosixPath

import demo_corpus
from common import atomic_path, run_as_script
from corpus_recipes import load_recipe, recipe_names
from tqdm import tqdm

ATTEMPTS = 5
TIMEOUT = 60
BLOCK = 1 << 16
RECORD = "downloaded.json"


class Incomplete(Exception):
    """A transfer broke off; trying again may help."""


def resumable(part, validator):
    """How many bytes of a broken transfer are there to build upon; only if the server can tell whether they still fit."""
    return part.stat().st_size if part.exists() and validator.exists() else 0


def transfer(url, part):
    """Download to the file `part`, building upon what an earlier attempt left there. Raises Incomplete, ValueError."""
    validator = part.with_name(part.name + ".validator")
    have = resumable(part, validator)
    request = urllib.request.Request(url, headers={"User-Agent": "vaswani_plugin"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", validator.read_text("utf-8"))
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            resumed = answer.status == 206
            mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            if not resumed:
                have = 0
                validator.unlink(missing_ok=True)
                # a weak validator does not promise the same bytes
                if mark and not mark.startswith("W/") and answer.headers.get("Accept-Ranges") != "none":
                    validator.write_text(mark, "utf-8")
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length else None
            with open(part, "ab" if resumed else "wb") as file, \
                    tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=part.name.removesuffix(".part")) as bar:
                while block := answer.read(BLOCK):
                    file.write(block)
                    bar.update(len(block))
    except urllib.error.HTTPError as error:
        if error.code == 416:  # what is there is not a part of what the server has
            part.unlink(missing_ok=True)
            raise Incomplete("the part that was there did not fit") from None
        if error.code in (408, 429) or error.code >= 500:
            raise Incomplete(f"the server answers {error.code} {error.reason}") from None
        raise ValueError(f"the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:  # URLError, time-outs and resets are kinds of OSError
        raise Incomplete(str(getattr(error, "reason", error)) or type(error).__name__) from None
    if total is not None and part.stat().st_size != total:
        raise Incomplete(f"{part.stat().st_size} of {total} bytes arrived")
    validator.unlink(missing_ok=True)


def fault(path, entry):
    """What is wrong with a file according to the recipe's size and checksums, or None."""
    size = path.stat().st_size
    if entry.get("bytes", size) != size:
        return f"has {size} bytes instead of {entry['bytes']}"
    for kind in ("md5", "sha256"):
        if kind in entry:
            found = checksum(path, kind)
            if found != entry[kind]:
                return f"has the {kind} {found} instead of {entry[kind]}"
    return None


def checksum(path, kind):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def by_hand(entry, path):
    return f"To place it by hand: get {entry['url']} as {path} and run the same command again."


def fetch(entry, folder, source=None, pause=1.0):
    """The verified file of a recipe's entry in `folder`, downloaded if it is not there. Raises ValueError."""
    path = folder / entry["name"]
    if path.exists():
        if wrong := fault(path, entry):
            raise ValueError(f"{path} {wrong}; remove it to have it fetched again.")
        return path
    part = path.with_name(path.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    url = entry["url"] if source is None else located(source, entry["name"])
    if not urllib.parse.urlsplit(url).scheme:
        try:
            shutil.copyfile(url, part)
        except OSError as error:
            raise ValueError(f"{url} cannot be copied: {error.strerror}. {by_hand(entry, path)}") from None
    else:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                transfer(url, part)
                break
            except Incomplete as error:
                if attempt == ATTEMPTS:
                    raise ValueError(
                        f"{url} could not be fetched in {ATTEMPTS} attempts: {error}. {by_hand(entry, path)}"
                    ) from None
                print(f"{url}: {error}; trying again in {pause:g} s", file=sys.stderr)
                time.sleep(pause)
                pause *= 2
            except ValueError as error:
                raise ValueError(f"{url} could not be fetched: {error}. {by_hand(entry, path)}") from None
    if wrong := fault(part, entry):
        part.unlink()
        raise ValueError(f"{url} {wrong}; it was not kept. {by_hand(entry, path)}")
    part.replace(path)
    return path


def located(source, name):
    """The place of a file in another folder or on another server."""
    parts = urllib.parse.urlsplit(source)
    if parts.scheme in ("http", "https"):
        return f"{source.rstrip('/')}/{urllib.parse.quote(name)}"
    if parts.scheme:
        raise ValueError(f"--from takes a folder or an address with http or https, not {source}.")
    return str(Path(source) / name)


def inside(folder, name):
    """The path of a member of an archive in `folder`. Raises ValueError if it lies elsewhere."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"'{name}' would be written outside of {folder}.")
    return folder / pure


def unpack(archive, members, folder):
    """Take the named members out of a tar archive, each whole or not at all; nothing else is written. Raises ValueError."""
    wanted = {str(PurePosixPath(member)): inside(folder, member) for member in members}
    try:
        with tarfile.open(archive) as tar:
            for info in tar:
                path = wanted.get(str(PurePosixPath(info.name)))
                if path is None:
                    continue
                if not info.isreg():
                    raise ValueError(f"{info.name} in {archive} is no regular file.")
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(path) as temporary, open(temporary, "wb") as file:
                    shutil.copyfileobj(tar.extractfile(info), file)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(f"{archive} cannot be unpacked ({error}); remove it to have it fetched again.") from None
    if missing := [member for member in members if not inside(folder, member).is_file()]:
        raise ValueError(f"{archive} does not hold {', '.join(missing)}.")


def download(recipe, folder, source=None, pause=1.0):
    """All files of a recipe in `folder`; what is there already is left as it is. Raises ValueError."""
    folder.mkdir(parents=True, exist_ok=True)
    record_path = folder / RECORD
    record = json.loads(record_path.read_text("utf-8")) if record_path.exists() else {}
    for entry in recipe.get("file", []):
        members = entry.get("members", [])
        if members and all(inside(folder, member).is_file() for member in members):
            print(f"{entry['name']}: unpacked before")
            continue
        path = fetch(entry, folder, source, pause)
        if members:
            unpack(path, members, folder)
        record[entry["name"]] = {"url": entry["url"], "bytes": path.stat().st_size, "sha256": checksum(path, "sha256")}
        with atomic_path(record_path) as temporary:
            temporary.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        print(f"{entry['name']}: {record[entry['name']]['bytes']} bytes, sha256 {record[entry['name']]['sha256']}")
        if not {"md5", "sha256"} & entry.keys():
            print("  (the recipe knows no checksum of it; this one is kept in downloaded.json)")
    if "demo" in recipe:
        make_demo(recipe, folder)


def make_demo(recipe, folder):
    """The corpus of the quick start, as text files in `folder`."""
    if all((folder / f"{part}.{recipe[side]}").is_file() for part in demo_corpus.PARTS for side in ("source", "target")):
        print("the corpus was made before")
        return
    dropped = Counter()
    packages = folder.with_name(f"{folder.name}.packages")
    parts, source, target, about = demo_corpus.make_corpus(
        recipe["demo"]["corpus"], recipe["source"], recipe["target"], packages, dropped
    )
    manifest = {**about, "languages": {"source": source, "target": target}, "dropped": dict(dropped.most_common())}
    demo_corpus.write_corpus(folder, parts, source, target, manifest)
    for part, pairs in parts.items():
        print(f"{part}: {len(pairs)} pairs")


def describe(name):
    recipe = load_recipe(name)
    lines = [f"{name}: {recipe['title']}", f"  yields: {recipe['yields']}", f"  licence: {recipe['licence']}"]
    lines += [f"  {entry['url']}" for entry in recipe.get("file", [])]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description="Fetch the corpus of a recipe: downloads go on where they broke off, are tried again, verified, and"
        " unpacked as far as the recipe needs. Files that are there already are used as they are, so that where there is no"
        " network they can be placed by hand.",
        epilog="example: python scripts/download.py multi30k.en-de, then python scripts/prepare.py --recipe multi30k.en-de"
        " --out data-bin/multi30k",
    )
    parser.add_argument("recipe", nargs="?", help="one of: " + ", ".join(recipe_names()))
    parser.add_argument("--to", type=Path, help="folder for the files (default: data/RECIPE)")
    parser.add_argument("--from", dest="origin", help="a folder or http address that has the files under their names,"
                        " instead of their own addresses")
    parser.add_argument("--list", action="store_true", help="tell about the recipes and end")
    args = parser.parse_args()
    if args.list or args.recipe is None:
        print("\n".join(describe(name) for name in ([args.recipe] if args.recipe else recipe_names())))
        return
    recipe = load_recipe(args.recipe)
    folder = args.to or Path("data") / args.recipe
    download(recipe, folder, args.origin)
    print(f"Next: python scripts/prepare.py --recipe {args.recipe} --raw {folder} --out data-bin/{args.recipe}")


if __name__ == "__main__":
    run_as_script(main)
