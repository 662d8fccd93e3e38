"""What `import pdecnn` brings: public names, when they are asked for, and both registries in any order of imports."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import pdecnn

ROOMS = [name for name in pdecnn.__all__ if (Path(pdecnn.__file__).parent / name).is_dir()]


def run(code, *options):
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_import_alone_brings_neither_torch_nor_timm():
    assert run("import pdecnn, sys; print({'torch', 'timm'} & set(sys.modules))") == "set()\n"


def test_dir_shows_the_public_names_and_no_others():
    assert sorted(dir(pdecnn)) == sorted(pdecnn.__all__)
    assert {"condense", "export", "functional", "layers", "profile", "training"} <= set(dir(pdecnn))
    assert not {"kernels", "shared", "cli", "TYPE_CHECKING", "after_import"} & set(dir(pdecnn))


@pytest.mark.parametrize("name", pdecnn.__all__)
def test_every_public_name_is_there(name):
    assert getattr(pdecnn, name) is not None


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_is_public(room):
    module = importlib.import_module(f"pdecnn.{room}")
    assert len(set(module.__all__)) == len(module.__all__) > 0
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_help_has_the_functions():
    text = run("import pdecnn, pydoc; print(pydoc.plain(pydoc.render_doc(pdecnn)))")
    assert "condense(" in text
    assert "after_import" not in text.split("FILE")[0]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'condence'"):
        pdecnn.condence  # noqa: B018


def test_type_checkers_see_the_names():
    """They read what stands under TYPE_CHECKING and nothing else."""
    tree = ast.parse(Path(pdecnn.__file__).read_text(encoding="utf-8"))
    (seen,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    names = {alias.name for node in seen.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names | {"__version__"} == set(pdecnn.__all__)


@pytest.mark.slow
def test_mypy_knows_the_signatures(tmp_path):
    """The long way of the test above."""
    script = tmp_path / "script.py"
    script.write_text("import pdecnn\npdecnn.condense(1)\npdecnn.nonsense\npdecnn.layers.GlobalLayer(channels='x')\n")
    config = Path(__file__).parents[1] / "pyproject.toml"
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--follow-imports=silent", str(script)]
    found = subprocess.run(command, capture_output=True, text=True).stdout
    for line, code in ((2, "arg-type"), (3, "attr-defined"), (4, "arg-type")):
        assert any(f"script.py:{line}:" in row and f"[{code}]" in row for row in found.splitlines()), found


ORDERS = [
    "import pdecnn, timm",
    "import timm, pdecnn",
    "import importlib.util, pdecnn; importlib.util.find_spec('timm'); import timm",
    *(f"import pdecnn.{room}, timm" for room in ("reference", "layers", "training")),
]


@pytest.mark.parametrize("imports", ORDERS)
def test_models_and_operators_are_registered(imports):
    code = f"{imports}\nimport torch, sys\nprint(type(timm.create_model('cifar_resnet_tiny_global')).__name__)"
    code += "\nprint(torch.ops.pdecnn.advection_diffusion.default)"
    code += "\nprint([f for f in sys.meta_path if type(f).__module__.startswith('pdecnn')])"
    assert run(code).split("\n") == ["CifarResNet", "pdecnn.advection_diffusion.default", "[]", ""]


def test_the_operators_need_torch_alone():
    code = "import pdecnn, torch, sys; print(torch.ops.pdecnn.global_layer.default, 'timm' in sys.modules)"
    assert run(code) == "pdecnn.global_layer.default False\n"
