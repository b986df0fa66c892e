"""Run folders become figures and one HTML page; needs the extra ``report``."""

#: What figures can be written as.
FIGURE_KINDS = ("png", "svg", "pdf")
