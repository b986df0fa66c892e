"""Turn run folders into figures and one HTML page. Needs the extra ``report``."""

#: File formats of figures.
FIGURE_KINDS = ("png", "svg", "pdf")
