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
sys.path.insert(0, str(HERE.parent))

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

# The docstrings name the types; signatures stay short.
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
    """`aopc()` and `TextExplainer.explain` in backticks become links to the API, and stay readable on GitHub."""

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


def link_to(app: Sphinx, page: str, name: str, shown: nodes.Node) -> nodes.reference | None:
    """A link to the object of a full or short name; of several, to the one nearest to the package."""
    python = app.env.domains["py"]
    assert isinstance(python, PythonDomain)
    full = [one for one in python.objects if one == name or one.endswith("." + name)]
    if not full:
        return None
    found = min(full, key=lambda one: (one.count("."), one))
    entry = python.objects[found]
    return make_refnode(app.builder, page, entry.docname, entry.node_id, shown, found)


def find_elsewhere(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, shown: nodes.Node) -> object:
    """Docstrings name things as their own module does; the pages have them under the public package."""
    return link_to(app, node["refdoc"], node["reftarget"], shown) if node.get("refdomain") == "py" else None


def tidy_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Before napoleon reads a docstring."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # an empty comment: else it takes what stands before a colon for a type
    # What namedtuple writes by itself.
    lines[:] = [line for line in lines if not line.startswith(("Create new instance of ", "Alias for field number "))]


def skip_fields(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Fields of a named tuple stand in its docstring."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number ") else None


def inline_math(translator: nodes.NodeVisitor, node: nodes.math) -> None:
    """Formulas as MathML, which browsers draw by themselves: no script, nothing fetched."""
    translator.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def block_math(translator: nodes.NodeVisitor, node: nodes.math_block) -> None:
    """The same for formulas on lines of their own."""
    translator.body.append(f'<div class="formula">{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def draw_first_map(app: Sphinx) -> None:
    """The token map of the start page, by the code that stands above it there."""
    path = HERE / "_build" / "drawn" / "first.html"
    from captum_iba.demo import embedded_model_path, embedded_statistics
    from captum_iba.text import TextExplainer

    explainer = TextExplainer.from_pretrained(
        embedded_model_path(), statistics=[embedded_statistics(layer) for layer in range(1, 13)]
    )
    result = explainer.explain(
        "The photography is stunning and the score is lovely. "
        "Sadly the story is a boring mess, and I cannot recommend it."
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result._repr_html_(), encoding="utf-8")


def copy_tutorials(app: Sphinx, config: object) -> None:
    """The notebooks lie beside docs/, and Sphinx reads only what is in it."""
    folder = HERE / "tutorials"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.ipynb"):
        if not (HERE.parent / "tutorials" / old.name).is_file():
            old.unlink()
    for notebook in (HERE.parent / "tutorials").glob("*.ipynb"):
        shutil.copy2(notebook, folder)


def mend_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Links that are right in the repository, between docs/ and tutorials/, as they must be where the copies lie."""
    source[0] = source[0].replace("](../docs/", "](../").replace("../tutorials/", "tutorials/")


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline_math, None), block_renderers=(block_math, None))
    app.add_post_transform(LinkNames)
    app.connect("autodoc-process-docstring", tidy_docstring, priority=400)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("missing-reference", find_elsewhere)
    app.connect("config-inited", copy_tutorials)
    app.connect("source-read", mend_links)
    app.connect("builder-inited", draw_first_map)
