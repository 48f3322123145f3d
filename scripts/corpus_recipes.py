"""Corpora that have a name: where their files are, and how they become training, validation and test text.

A recipe is a file `recipes/NAME.toml`:

    title, source, target, licence, yields   text for people, and the two languages
    [[file]]                                 name, url, and where known bytes, md5 or sha256; members: what is taken
                                             out of an archive
    [[train]] [[valid]] [[test]]             source, target: the files of the two sides, once unpacked
    [settings]                               options of prepare.py, as the recipe sets them
"""

import tomllib
from pathlib import Path

from parallel_text import Corpus

FOLDER = Path(__file__).resolve().parent / "recipes"
PARTS = ("train", "valid", "test")


def recipe_names():
    return sorted(path.name.removesuffix(".toml") for path in FOLDER.glob("*.toml"))


def load_recipe(name, folder=FOLDER):
    """The recipe as a dict. Raises ValueError: there is none of that name."""
    try:
        return tomllib.loads((folder / f"{name}.toml").read_text("utf-8"))
    except OSError:
        raise ValueError(f"there is no recipe '{name}'; there are {', '.join(recipe_names())}.") from None


def read_recipe(name, raw, folder=FOLDER):
    """`(source, target, corpora by part, settings)` for the files of a recipe in the folder `raw`. Raises ValueError."""
    recipe = load_recipe(name, folder)
    corpora = {
        part: [Corpus(Path(raw) / entry["source"], Path(raw) / entry["target"]) for entry in recipe.get(part, [])]
        for part in PARTS
    }
    missing = [str(path) for part in PARTS for corpus in corpora[part] for path in corpus.paths if not path.is_file()]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} not there: fetch the files with 'python scripts/download.py {name} --to {raw}', which"
            " also says how to place them by hand."
        )
    return recipe["source"], recipe["target"], corpora, recipe.get("settings", {})
