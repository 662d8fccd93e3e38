"""Both models in ONNX Runtime: figures, agreement, and what is said when something is missing."""

import re
import sys

import pytest
import torch
from torch import nn

from pdecnn.condensation.deployed import OnnxComparison, OnnxFile, compare_onnx
from pdecnn.condensation.job import deploy
from pdecnn.deploy import session
from pdecnn.layers import GlobalLayer

IMAGES = torch.rand(5, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def nets() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)

    def net(*middle: nn.Module) -> nn.Module:
        ends = nn.Conv2d(1, 8, 3, padding=1), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
        return nn.Sequential(ends[0], nn.ReLU(), *middle, ends[1]).eval()

    return net(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(12))), net(GlobalLayer(8, K=2))


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[OnnxComparison, nn.Module]:
    pytest.importorskip("onnxruntime")
    before, after = nets()
    path = tmp_path_factory.mktemp("onnx") / "student.onnx"
    return compare_onnx(before, after, IMAGES, path, rounds=3, max_seconds=0.5), path


def test_the_files_are_compared_timed_and_measured(compared):
    found, path = compared
    assert [p.name for p in path.parent.iterdir()] == ["student.onnx"]
    assert found.file == "student.onnx"
    assert found.after.bytes == path.stat().st_size
    assert found.before.bytes > 12 * 8 * 8 * 9 * 4
    for file in (found.before, found.after, found.fused):
        assert file.samples == 5
        assert file.top1 == 1.0
        assert 0 <= file.max_error < 1e-4
        assert 0 < file.ms_batch_1 < file.ms_batch_64
    assert (found.before.ops, found.after.ops, found.fused.ops) == ("portable", "portable", "fused")
    assert set(found.speedups) == {"batch_1", "batch_64", "fused_batch_1", "fused_batch_64"}


def test_the_file_that_stays_is_the_students(compared):
    _, path = compared
    (logits,) = session(path).run(None, {"input": IMAGES.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(logits), nets()[1](IMAGES), rtol=1e-4, atol=1e-5)


def test_rows_and_lines_tell_the_figures():
    before, after = OnnxFile("portable", 400, 1.0, 60.0, 0.0, 1.0, 64), OnnxFile("portable", 100, 2, 40, 3e-7, 1.0, 64)
    speedups = {"batch_1": 0.5, "batch_64": 1.5}
    found = OnnxComparison("student.onnx", before, after, None, speedups)
    assert found.rows() == [
        ("ONNX Runtime, batch 1, ms", "1.00", "2.00", "2.00 x more"),
        ("ONNX Runtime, batch 64, ms", "60.00", "40.00", "1.50 x less"),
        ("ONNX file, bytes", "400", "100", "4.00 x less"),
    ]
    (line,) = found.lines()
    assert "student.onnx against the student on 64 images: max error 3.0e-07" in line
    assert "top-1 agreement 100.0 %" in line


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_the_extra_one_line_names_it(missing, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    found, notes = deploy(*nets(), IMAGES, tmp_path / "student.onnx")
    assert found is None
    assert len(notes) == 1
    assert f'needs {missing}, which is not installed. Run: pip install "pdecnn[export]"' in notes[0]
    assert "\n" not in notes[0]
    assert not list(tmp_path.iterdir())


def test_a_file_that_disagrees_is_told_and_not_kept(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(sys.modules["pdecnn.deploy.api"], "TOLERANCE", -1.0)
    found, notes = deploy(*nets(), IMAGES, tmp_path / "student.onnx")
    assert found is None
    assert "No student.onnx: export: the file differs from the model by" in notes[0]
    assert not list(tmp_path.iterdir())


class Asks(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def test_a_model_that_no_file_can_be_written_of_is_told(tmp_path):
    pytest.importorskip("onnxruntime")
    found, notes = deploy(nets()[0], Asks(), IMAGES, tmp_path / "student.onnx")
    assert found is None
    assert notes[0].startswith("No student.onnx: export: Asks cannot be traced: ")
    assert not list(tmp_path.iterdir())


def test_a_defect_of_the_export_is_told_as_one_with_its_place(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")

    def broken(*arguments, **options):
        raise TypeError("no operator")

    monkeypatch.setattr(sys.modules["pdecnn.deploy.api"], "to_onnx", broken)
    found, notes = deploy(*nets(), IMAGES, tmp_path / "student.onnx")
    assert found is None
    expected = r"No student\.onnx, by a defect of the export: TypeError in test_deployed\.py, line \d+: no operator"
    assert re.fullmatch(expected, notes[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, b"no library"])
def test_without_the_library_the_portable_figures_stay(content, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    library = tmp_path / "libpdecnn_ort.so"
    if content:
        library.write_bytes(content)
    monkeypatch.setenv("PDECNN_ORT_LIBRARY", str(library))
    found, notes = deploy(*nets(), IMAGES, tmp_path / "student.onnx")
    assert found.fused is None
    assert set(found.speedups) == {"batch_1", "batch_64"}
    assert len(notes) == 1
    assert notes[0].startswith("fused ops are left out: ")
    assert str(library) in notes[0]
