"""Lay out the sources of the site: README, guides, results, and a page for each public name.

    python tools/site/pages.py FOLDER

Sphinx makes the site from this folder, and adds the gallery.
"""

import inspect
import re
import shutil
import sys
from pathlib import Path

import ooc_fw

PROJECT = Path(__file__).parents[2]
GUIDES = PROJECT / "ooc_fw" / "guides"
OTHERS = ("bench/README.md", "bench/papers/RESULTS.md", "bench/papers/figures")
"""What README leads to besides the guides."""

TOCTREE = """
```{{toctree}}
:hidden:
:caption: {caption}

{entries}
```
"""

HEAD = """# Reference

All public names of `ooc_fw`.

| name | meaning |
| --- | --- |"""

CLASS = """
   :members:
   :inherited-members: BaseEstimator, Exception, str"""


def toctree(caption: str, *entries: str) -> str:
    """The part of a page that puts other pages below it."""
    return TOCTREE.format(caption=caption, entries="\n".join(entries))


def write_front(folder: Path) -> None:
    """README as the first page; its links to guides lead to their pages."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    parts = ["guides/index", "api/index", "gallery/index", "guides/changes"]
    results = toctree("Results", "bench/README", "bench/papers/RESULTS")
    text = text.replace("](ooc_fw/guides/", "](guides/") + toctree("Contents", *parts) + results
    (folder / "index.md").write_text(text, encoding="utf-8")


def write_guides(folder: Path) -> None:
    """The guides, and links in their list and in the table of public names."""
    shutil.copytree(GUIDES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    index = folder / "index.md"
    text = index.read_text(encoding="utf-8")
    names = re.findall(r"^- `(\w+)`:", text, flags=re.MULTILINE)
    text = re.sub(r"^- `(\w+)`:", r"- [\1](\1.md):", text, flags=re.MULTILINE)
    below = [name for name in names if name != "changes"]
    index.write_text(text + toctree("Guides", *below), encoding="utf-8")
    python = folder / "python.md"
    text = re.sub(r"^\| `(\w+)` \|", link_of_name, python.read_text(encoding="utf-8"), flags=re.M)
    python.write_text(text, encoding="utf-8")


def link_of_name(found: re.Match[str]) -> str:
    """The first cell of a table, with a link if it is a public name."""
    name = found[1]
    return f"| [`{name}`](../api/{name}.rst) |" if name in ooc_fw.__all__ else found[0]


def write_reference(folder: Path) -> None:
    """A page for each public name, and a table of them."""
    folder.mkdir()
    rows = []
    for name in ooc_fw.__all__:
        thing = getattr(ooc_fw, name)
        is_class = inspect.isclass(thing)
        kind = "autoclass" if is_class else "autofunction"
        text = f".. {kind}:: ooc_fw.{name}{CLASS if is_class else ''}\n"
        if is_class and hasattr(thing, "__members__"):
            text += "   :undoc-members:\n"
        title = f"{name}\n{'=' * len(name)}\n\n"
        (folder / f"{name}.rst").write_text(title + text, encoding="utf-8")
        first = inspect.getdoc(thing).partition("\n\n")[0].replace("\n", " ")
        rows.append(f"| [`{name}`]({name}.rst) | {first} |")
    text = "\n".join([HEAD, *rows, toctree("Public names", *ooc_fw.__all__)])
    (folder / "index.md").write_text(text, encoding="utf-8")


def lay_out(folder: Path) -> None:
    """Write the sources of all pages to a new folder; the build adds the gallery."""
    folder.mkdir(parents=True)
    write_front(folder)
    write_guides(folder / "guides")
    write_reference(folder / "api")
    for name in OTHERS:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
        copy(PROJECT / name, target)
    for path in Path(__file__).parent.glob("*.ipynb"):
        shutil.copy(path, folder)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
