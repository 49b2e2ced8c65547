"""Configuration of Sphinx for the site; ``tools/site.sh`` calls it."""

import ast
import dataclasses
import inspect
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # Sphinx may import the function `look` of this folder

import ooc_fw  # noqa: E402

project = "ooc-fw"
author = "The ooc-fw developers"
copyright = f"2026, {author}"
version = release = ooc_fw.__version__

extensions = [
    "sphinx.ext.autodoc",
    "numpydoc",
    "myst_nb",
    "sphinx_gallery.gen_gallery",
]
default_role = "py:obj"
exclude_patterns = ["gallery/*.ipynb", "gallery/*.py"]

autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True  # as they are written
autodoc_typehints_format = "short"
autodoc_default_options = {
    "exclude-members": "get_metadata_routing, set_fit_request, set_partial_fit_request, "
    "set_score_request"  # what scikit-learn adds to an estimator
}
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 70
numpydoc_show_class_members = False

myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

sphinx_gallery_conf = {
    "examples_dirs": str(HERE / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": ("matplotlib", "look.set_look"),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = f"ooc-fw {version}"
html_static_path = [str(HERE / "site.css")]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_sidebars = {"guides/changes": [], "bench/**": []}
html_theme_options = {
    "show_prev_next": False,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}


def comments_of_fields(cls):
    """Words for each field of a dataclass: the comments beside or above it, or the text below."""
    lines, _ = inspect.getsourcelines(cls)
    body = ast.parse(inspect.cleandoc("\n" + "".join(lines))).body[0].body
    lines = [""] + inspect.cleandoc("\n" + "".join(lines)).splitlines()
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        _, _, beside = lines[node.end_lineno][node.end_col_offset :].partition("# ")
        words = [beside] if beside else []
        above = node.lineno - 1
        while lines[above].lstrip().startswith("# "):
            words.insert(0, lines[above].lstrip()[2:])
            above -= 1
        value = getattr(after, "value", None)
        if isinstance(after, ast.Expr) and isinstance(value, ast.Constant):
            words.append(" ".join(value.value.split()))
        yield node.target.id, ast.unparse(node.annotation), " ".join(words)


def is_record(thing):
    """Whether a class is a record whose docstring names no fields: one that others make."""
    return dataclasses.is_dataclass(thing) and "----" not in (thing.__doc__ or "")


def without_signature(app, what, name, thing, options, signature, returned):
    """Leave out the arguments of a record, which are its fields."""
    return ("", None) if is_record(thing) else None


def add_fields(app, what, name, thing, options, lines):
    """Add the fields of a record to its docstring."""
    if not is_record(thing):
        return
    lines += ["", "Attributes", "----------"]
    owners = [cls for cls in reversed(thing.__mro__) if "__dataclass_fields__" in vars(cls)]
    for owner in owners:
        for field, kind, words in comments_of_fields(owner):
            lines += [f"{field} : {kind}", f"    {words}"]


def setup(app):
    """Let records be described before numpydoc reads their docstrings."""
    app.connect("autodoc-process-docstring", add_fields, priority=400)
    app.connect("autodoc-process-signature", without_signature)
