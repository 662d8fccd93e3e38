import json
import os
import re
import subprocess
import sys
from importlib.metadata import requires

from typer.testing import CliRunner

from pdecnn.cli import app


def test_info_names_a_kernel_for_every_operator():
    result = CliRunner().invoke(app, ["info", "--json"])
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    backed = {(row["op"], row["device"]) for row in data["kernels"]}
    assert {("advection_diffusion", "cpu"), ("advection_diffusion", "cuda"), ("global_layer", "cpu")} <= backed
    assert all(row["kernel"] for row in data["kernels"])
    assert data["environment"]["torch"]


def test_info_table_shows_versions_and_kernels():
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 0
    assert "torch" in result.stdout
    assert "advection_diffusion" in result.stdout


def test_info_says_why_the_native_kernels_are_missing():
    environment = {**os.environ, "PDECNN_KERNELS": "reference"}
    command = [sys.executable, "-m", "pdecnn", "info", "--json"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    data = json.loads(result.stdout)
    assert data["native"] == {"loaded": False, "reason": "PDECNN_KERNELS=reference"}
    assert {row["kernel"] for row in data["kernels"] if row["device"] == "cpu"} == {"reference"}


def test_info_tells_of_every_package_of_the_extras():
    extras = {r.partition(";")[0].strip() for r in requires("pdecnn") or () if 'extra == "all"' in r}
    kinds = {kind for r in extras for kind in re.findall(r"\[(.*)\]", r)[0].split(",")}
    asked = (r.partition(";") for r in requires("pdecnn") or ())
    names = {re.split(r"[\[<>=~! ]", name)[0] for name, _, rule in asked if any(f'"{kind}"' in rule for kind in kinds)}
    assert len(names) > 8
    assert names - {"pdecnn"} <= set(json.loads(CliRunner().invoke(app, ["info", "--json"]).stdout)["optional"])
