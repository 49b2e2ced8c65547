"""Make a copy of the project ready for the package index: ``python tools/package.py FOLDER``.

README then links to files of the project from any page. The source distribution has what tests,
figures and tables need beside the package.
"""

import re
import sys
import tomllib
from pathlib import Path

CONTENTS = """graft ooc_fw
graft bench
graft tests
graft tools
global-exclude *.py[cod]
"""


def with_whole_links(text: str, address: str) -> str:
    """Text in Markdown whose links to files of the project lead there from any page."""
    links = re.compile(r"(!?)(\[[^]]*\]\()(?!https?:|#)")
    kinds = {"!": "raw", "": "blob"}  # a picture itself, and the page of a file
    return links.sub(lambda found: f"{found[0]}{address}/{kinds[found[1]]}/main/", text)


def main(folder: Path) -> None:
    """Change the files of a copy."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = folder / "README.md"
    whole = with_whole_links(readme.read_text(encoding="utf-8"), project["urls"]["Homepage"])
    readme.write_text(whole, encoding="utf-8")
    (folder / "MANIFEST.in").write_text(CONTENTS, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
