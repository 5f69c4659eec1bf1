"""Settings of Sphinx; `make docs` builds docs/_build/html, with warnings as errors."""

import re
import shutil
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from captum_iba import __version__  # noqa: E402

project = "captum_iba"
author = "the captum_iba authors"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
root_doc = "index"

# Notebooks are shown as they are stored: the tests run them.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

# The docstrings have the types, so signatures stay short.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autoclass_content = "both"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Types in docstrings are prose ("list of Tensor"); names of this package have to be right.
nitpicky = True
nitpick_ignore_regex = [(r"py:(class|data|attr|exc|obj)", r"(?!captum_iba).*")]

html_theme = "furo"
html_title = f"captum_iba {release}"
html_static_path = ["_static"]
html_css_files = ["extra.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = html_show_copyright = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


LOG = logging.getLogger(__name__)


class LinkNames(SphinxPostTransform):
    """Link names in backticks, such as `aopc()` and `TextExplainer.explain`, to the API."""

    default_priority = 400

    def run(self, **kwargs: object) -> None:
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext()
            # A bare lower-case word is as likely an argument or a value.
            is_name = re.fullmatch(r"[\w.]+(\(\))?", text) and re.search(r"[._A-Z]|\(\)$", text)
            if not is_name or isinstance(literal.parent, nodes.reference) or literal.get("classes"):
                continue
            link = link_to(self.app, self.env.docname, text.removesuffix("()"), literal.deepcopy())
            if link is not None:
                literal.replace_self(link)
            elif text.endswith("()") and not self.env.docname.startswith("api/"):
                LOG.warning("there is no %s in the API", text, location=literal)


def link_to(app: Sphinx, page: str, name: str, content: nodes.Node) -> nodes.reference | None:
    """A link to the object of a full or short name; of several objects, to the one with the shortest full name."""
    python = app.env.domains["py"]
    assert isinstance(python, PythonDomain)
    full_names = [full for full in python.objects if full == name or full.endswith("." + name)]
    if not full_names:
        return None
    target = min(full_names, key=lambda full: (full.count("."), full))
    entry = python.objects[target]
    return make_refnode(app.builder, page, entry.docname, entry.node_id, content, target)


def link_to_public_name(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Node) -> object:
    """Docstrings use the names of their own module; the API pages list objects under the public package."""
    return link_to(app, node["refdoc"], node["reftarget"], content) if node.get("refdomain") == "py" else None


def tidy_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Prepare a docstring for napoleon."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # an empty comment; without it napoleon takes the text before a colon for a type
    # Docstrings that namedtuple generates.
    lines[:] = [line for line in lines if not line.startswith(("Create new instance of ", "Alias for field number "))]


def skip_fields(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Skip the fields of a named tuple, which its docstring describes."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number ") else None


def inline_math(translator: nodes.NodeVisitor, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers render without scripts."""
    translator.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def block_math(translator: nodes.NodeVisitor, node: nodes.math_block) -> None:
    """Write a formula on a line of its own as MathML."""
    translator.body.append(f'<div class="formula">{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def draw_first_map(app: Sphinx) -> None:
    """The token map that the start page includes."""
    from picture import explain_first_text

    path = HERE / "_build" / "drawn" / "first.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(explain_first_text()._repr_html_(), encoding="utf-8")


def copy_tutorials(app: Sphinx, config: object) -> None:
    """Copy the notebooks into docs/, because Sphinx reads only what is in it."""
    folder = HERE / "tutorials"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.ipynb"):
        if not (HERE.parent / "tutorials" / old.name).is_file():
            old.unlink()
    for notebook in (HERE.parent / "tutorials").glob("*.ipynb"):
        shutil.copy2(notebook, folder)


def adapt_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Rewrite links between docs/ and tutorials/ for the copies of the notebooks."""
    source[0] = source[0].replace("](../docs/", "](../").replace("../tutorials/", "tutorials/")


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline_math, None), block_renderers=(block_math, None))
    app.add_post_transform(LinkNames)
    app.connect("autodoc-process-docstring", tidy_docstring, priority=400)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("missing-reference", link_to_public_name)
    app.connect("config-inited", copy_tutorials)
    app.connect("source-read", adapt_links)
    app.connect("builder-inited", draw_first_map)
