"""Print the recipe of a conda package for a source distribution, after a look by rattler-build.

python tools/recipe.py SDIST
"""

import hashlib
import re
import sys
import tarfile
from email import message_from_binary_file
from pathlib import Path

from rattler_build import Stage0Recipe

TEMPLATE = Path(__file__).with_suffix(".yaml")
NAMES = {"dask": "dask-core"}  # of packages that are called otherwise in conda-forge


def recipe_for(sdist: Path) -> str:
    """Text of the recipe, with what the metadata of a source distribution say."""
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        metadata = message_from_binary_file(file)
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    words = {
        "VERSION": metadata["Version"],
        "PYTHON": metadata["Requires-Python"].removeprefix(">="),
        "ADDRESS": urls["Homepage"],
        "SHA256": hashlib.sha256(sdist.read_bytes()).hexdigest(),
        "SUMMARY": metadata["Summary"],
    }
    text = TEMPLATE.read_text(encoding="utf-8").partition("\n")[2]
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    # The package is one for all systems, and so takes what only some of them need.
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    pairs = [re.match(r"([\w-]+)([^;]*)", line).groups() for line in needed]
    lines = [f"- {NAMES.get(name, name)} {bounds}" for name, bounds in pairs]
    return text.replace("# @DEPENDENCIES@", "\n    ".join(lines))


if __name__ == "__main__":
    filled = recipe_for(Path(sys.argv[1]))
    (variant,) = Stage0Recipe.from_yaml(filled).render()
    assert str(variant.recipe.package.name) == "ooc-fw"
    print(filled, end="")
