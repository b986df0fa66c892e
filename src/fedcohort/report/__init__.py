"""Figures; needs the extra ``report``."""
