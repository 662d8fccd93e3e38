"""How the documentation is built: `make docs`."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # house, the part of Sphinx that is ours

project = "pdecnn"
author = "The pdecnn authors"
copyright = author
version = release = version_of("pdecnn")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "house.extension",
]
exclude_patterns = ["tutorials/*"]
nitpicky = True
# names of other projects: their inventories are on the network, and this builds without one
OTHERS = "torch|timm|numpy|np|PIL|pydantic|annotated_types|rich|onnxruntime|matplotlib|typer|accelerate|optuna|onnx"
STANDARD = "pathlib|collections|typing|types|abc|enum|dataclasses|os|contextlib"
nitpick_ignore_regex = [
    (r"py:.*", rf"({OTHERS}|{STANDARD})\..*"),
    (r"py:class", r"FieldInfo|NoneType|AllowInfNan|Ge|Gt|Le|Lt"),  # how pydantic writes the bounds of a recipe
    (r"py:class", r"pdecnn\.(analysis\.latency\.Key|condensation\.(blocks\.F|replacements\.B))"),  # type variables
    (r"py:class", r"pdecnn\.deploy\.engines\.Engine"),  # inside of `Served`, which is made by a function
    (r"py:obj", r".*"),  # `text` in a docstring is a link where it names something, and code where it does not
]

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Shape", "notes_style")]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

myst_enable_extensions = ["attrs_inline", "attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"pdecnn {release.partition('+')[0]}"
html_static_path = ["_static"]
html_css_files = ["house.css"]
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "learn",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 10_000,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "capture_repr": (),  # what is printed is shown, and not what the last line of a block happens to give
    "matplotlib_animations": False,
    "reset_modules": ("house.extension.gallery_style",),
    "copyfile_regex": "",
    "write_computation_times": False,
}
