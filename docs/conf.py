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
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_copybutton",
    "mathml_formulas",
    "made_pages",
]

autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 72
napoleon_attr_annotations = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
python_display_short_literal_types = True

myst_enable_extensions = ["attrs_block", "dollarmath"]
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
