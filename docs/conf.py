"""Configuration of Sphinx; ``scripts/docs`` builds the pages."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import ampi  # noqa: E402

project = "ampi"
author = "The ampi developers"
copyright = author
version = release = ampi.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "tables"]
exclude_patterns = ["build"]
default_role = "py:obj"  # `name` in docstrings
highlight_language = "python"
nitpicky = False

autodoc_typehints = "none"  # docstrings say shapes and dtypes, which types do not
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_preprocess_types = False

html_theme = "furo"
html_title = f"ampi {version}"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_sidebars = {  # Furo's, with the choice of the version
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
        "sidebar/variant-selector.html",
    ]
}
html_css_files = ["ampi.css"]
html_copy_source = False
