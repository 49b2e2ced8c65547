"""The parts of the metadata that hold the address of the project; pyproject.toml has the rest."""

import re
from pathlib import Path

from setuptools import setup

ADDRESS = "https://repository.invalid/ooc-fw"
"""Where the project lies: a placeholder until it has a place. No other file holds it."""

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def with_whole_links(text: str) -> str:
    """Text in Markdown whose links to files of the project lead there from any page."""
    links = re.compile(r"(!?)(\[[^]]*\]\()(?!https?:|#)")
    kinds = {"!": "raw", "": "blob"}  # a picture itself, and the page of a file
    return links.sub(lambda found: f"{found[0]}{ADDRESS}/{kinds[found[1]]}/main/", text)


setup(
    long_description=with_whole_links(README),
    long_description_content_type="text/markdown",
    project_urls={
        "Homepage": ADDRESS,
        "Documentation": f"{ADDRESS}/blob/main/ooc_fw/guides/index.md",
        "Changelog": f"{ADDRESS}/blob/main/ooc_fw/guides/changes.md",
        "Issues": f"{ADDRESS}/issues",
        "Repository": ADDRESS,
    },
)
