"""Sphinx configuration for the site that `./lab site` builds (labkit_author/site.py)."""

import base64
import html
import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from mermaid_render import mermaid_to_svg
from sphinx.util.docutils import SphinxDirective

project = "Deep learning at scale on CPUs"
language = "en"
smartquotes_action = "qe"  # not dashes: help texts have options such as --out
extensions = ["myst_nb"]
exclude_patterns = ["extra"]
suppress_warnings = [
    "misc.highlighting_failure",  # "…" in code marks omissions
    "myst.duplicate_def",  # each Markdown cell defines its links, and Sphinx reads all cells as one page
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_fence_as_directive = {"mermaid"}
nb_execution_mode = "off"  # show the stored outputs
nb_merge_streams = True
nb_number_source_lines = False
nb_render_markdown_format = "myst"  # results are Markdown tables, which "commonmark" lacks
nb_code_prompt_show, nb_code_prompt_hide = "Show the code of this cell", "Hide the code of this cell"

html_theme = "pydata_sphinx_theme"
html_title = project
html_math_renderer = "mathml"
html_favicon = "icon.svg"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_copyright = False
html_sidebars = {"index": [], "commands": [], "notebooks/*": []}  # leaves room for code
html_use_index = False
html_context = {"default_mode": "auto"}  # follow the browser; if unset, the theme logs a warning in its console
html_theme_options = {
    "logo": {"text": project},
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "footer_start": [],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


class Mermaid(SphinxDirective):
    """A Mermaid diagram, rendered at build time so that browsers need no script."""

    has_content = True

    def run(self):
        """Return the diagram as an image with its accDescr as alt text."""
        text = "\n".join(self.content)
        match = re.search(r"accDescr\s*(?::\s*(.+)|\{(.+?)\})", text, flags=re.S if "accDescr {" in text else 0)
        alt = html.escape(" ".join((match[1] or match[2]).split()))
        svg = base64.b64encode(mermaid_to_svg(text)).decode()
        image = f'<img src="data:image/svg+xml;base64,{svg}" alt="{alt}">'
        # On a phone it scrolls, also with the keyboard.
        return [nodes.raw("", f'<div class="diagram" tabindex="0">{image}</div>', format="html")]


def visit_math(translator, node):
    """Write a formula as MathML, which browsers display natively."""
    block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=block)
    # Formulas wider than a phone scroll, also with the keyboard.
    translator.body.append(formula.replace("<math ", '<math tabindex="0" ', 1) if block else formula)
    raise nodes.SkipNode


def fix_page(app, pagename, templatename, context, doctree):
    """Fix problems for screen readers: a repeated title, a label that hides a summary's text, empty table headers."""
    if pagename == "index":
        context["docstitle"] = ""
    body = context.get("body", "").replace('<summary aria-label="Toggle hidden content">', "<summary>")
    context["body"] = re.sub(r"<th\b[^>]*>(?:<p></p>|&nbsp;|\s)*</th>", "<td></td>", body)


def setup(app):
    """Add diagrams and formulas."""
    app.connect("html-page-context", fix_page)
    app.add_directive("mermaid", Mermaid)
    app.add_html_math_renderer("mathml", inline_renderers=(visit_math, None), block_renderers=(visit_math, None))
