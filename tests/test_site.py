"""The site: its notebook runs, its pages are there, and the check of its links works."""

import json
import re
from pathlib import Path

import matplotlib
import pytest

import ooc_fw
from tools.site.check import check
from tools.site.pages import lay_out

SITE = Path(__file__).parents[1] / "tools" / "site"


def test_notebook_runs_from_the_first_to_the_last_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    cells = json.loads((SITE / "notebook.ipynb").read_text())["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    space: dict[str, object] = {}
    for cell in codes:
        assert not cell["outputs"]
        exec(compile("".join(cell["source"]), "notebook", "exec"), space)
    assert float(re.findall(r"accuracy on new rows: (\S+)", capsys.readouterr().out)[0]) > 0.97


def test_every_public_name_and_guide_has_a_page(tmp_path):
    source = tmp_path / "source"
    lay_out(source)
    assert {path.stem for path in (source / "api").glob("*.rst")} == {*ooc_fw.__all__}
    for page in source.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#]*)", page.read_text()):
            assert (page.parent / link).is_file(), (page, link)


FRONT = '<a href="other.html#part">one</a> <img src="picture.png"> <a href="https://a.example">'
OTHER = '<h1 id="part">part</h1> <dt id="ooc_fw.tune"> <a href="index.html">back</a>'
INDEX = 'Search.setIndex({"terms": {"gap": 0, "gamma": [0, 1], "landmark": 1}})'


@pytest.fixture
def site(tmp_path):
    (tmp_path / "index.html").write_text(FRONT)
    (tmp_path / "other.html").write_text(OTHER)
    (tmp_path / "picture.png").write_bytes(b"")
    (tmp_path / "searchindex.js").write_text(INDEX)
    return tmp_path


def test_a_whole_site_is_in_order(site):
    assert check(site, ["tune"]) == []


@pytest.mark.parametrize(
    ("page", "old", "new", "sentence"),
    [
        ("index.html", "picture", "lost", "a link leads nowhere, index.html: lost.png"),
        ("index.html", "#part", "#lost", "a link leads nowhere, index.html: other.html#lost"),
        ("other.html", "index", "../index", "a link leads nowhere, other.html: ../index.html"),
        ("other.html", "ooc_fw.tune", "x", "tune has no page"),
        ("searchindex.js", "gamma", "delta", "the search finds no gamma"),
    ],
)
def test_what_is_wrong_is_told(site, page, old, new, sentence):
    path = site / page
    path.write_text(path.read_text().replace(old, new))
    assert check(site, ["tune"]) == [sentence]


def test_a_page_without_a_link_is_told(site):
    (site / "lonely.html").write_text("")
    assert check(site, []) == ["no link leads to lonely.html"]
