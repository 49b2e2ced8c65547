"""Crawl a built site: links and anchors that lead nowhere, names without words, lost searches.

    python tools/site/check.py FOLDER

What is wrong is printed, and the exit status is then 1.
"""

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINKS = {"a": "href", "link": "href", "img": "src", "script": "src"}
SEARCHES = ("gap", "gamma", "landmark")
"""Words of the index of the search, which has stems: landmark for landmarks."""


class Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag leads to, and what leads to it."""
        values = dict(attrs)
        self.anchors.add(values.get("id") or "")
        link = values.get(LINKS.get(tag, ""))
        if link and not urlsplit(link).scheme and not urlsplit(link).netloc:
            self.links.append(link)


def crawl(folder: Path) -> tuple[dict[Path, Page], list[str]]:
    """All pages that links lead to from ``index.html``, and the links that lead nowhere."""
    folder = folder.resolve()
    pages: dict[Path, Page] = {}
    broken = []
    waiting = [(folder, "index.html")]
    while waiting:
        page, link = waiting.pop()
        parts = urlsplit(link)
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if page == folder:
            target = folder / link
        if target.is_dir():
            target /= "index.html"
        where = f"{page.relative_to(folder)}: {link}"
        if not target.is_file() or not target.is_relative_to(folder):
            broken.append(where)
            continue
        if target.suffix != ".html":
            continue
        if target not in pages:
            pages[target] = Page(target)
            waiting += [(target, each) for each in pages[target].links]
        if unquote(parts.fragment) not in pages[target].anchors:
            broken.append(where)
    return pages, sorted(set(broken))


def check(folder: Path, names: list[str]) -> list[str]:
    """Sentences about everything that is wrong with the site in a folder."""
    pages, broken = crawl(folder)
    wrong = [f"a link leads nowhere, {where}" for where in broken]
    own = (path for path in folder.rglob("*.html") if "_static" not in path.parts)
    lost = {path.resolve() for path in own} - pages.keys()
    wrong += [f"no link leads to {path.name}" for path in sorted(lost)]
    anchors = set().union(*(page.anchors for page in pages.values()))
    wrong += [f"{name} has no page" for name in names if f"ooc_fw.{name}" not in anchors]
    index = (folder / "searchindex.js").read_text(encoding="utf-8")
    terms = json.loads(index[index.index("{") : index.rindex("}") + 1])["terms"]
    wrong += [f"the search finds no {word}" for word in SEARCHES if word not in terms]
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links")
    return wrong


if __name__ == "__main__":
    import ooc_fw

    sys.exit("\n".join(check(Path(sys.argv[1]), ooc_fw.__all__)) or None)
