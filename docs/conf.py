"""How Sphinx builds the site; what is made for it lies in tools/docs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "docs"))

from fedcohort import __version__

project = "fedcohort"
author = "The fedcohort developers"
copyright = author  # noqa: A001  # the name that Sphinx reads
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "mathml_formulas",
    "site_pages",
]

myst_enable_extensions = ["attrs_block", "dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
myst_dmath_double_inline = True

html_title = "fedcohort"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00695c", "color-brand-content": "#00695c"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#4db6ac"},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
