"""Run folders become figures and one HTML page; needs the extra ``report``."""
