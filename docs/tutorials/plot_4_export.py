"""
Export and run
==============

A model that is only fast in PyTorch is of little use on a device. ``pdecnn.export`` writes a file, loads it, runs it
and compares it with the model before it gets its name.
"""

# %%
# ONNX, for every runtime
# -----------------------
# With portable operators the file runs wherever ONNX does. With ``ops="fused"`` each Global layer is one node, by the
# kernel that PyTorch uses here too.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import timm
import torch

import pdecnn
from pdecnn.deploy import session
from pdecnn.training.datasets import CIFAR10_CLASSES, load_sample

torch.set_num_threads(1)
folder = Path(tempfile.mkdtemp())
model = timm.create_model("cifar_resnet_tiny_global.cifar10", pretrained=True).eval()
x = torch.randn(2, 3, 32, 32)

files = {ops: folder / f"{ops}.onnx" for ops in ("portable", "fused")}
for ops, path in files.items():
    report = pdecnn.export(model, path, x, ops=ops)
    print(f"{ops:9} {path.stat().st_size:>8,} bytes, largest error {report.agreement.max_error:.1e}")

# %%
# Run it
# ------
# The names of the classes, mean and standard deviation are in the file.
sample = load_sample("cifar10")
mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
pictures = ((sample.x[:8] / 255 - mean) / std).numpy()

run = session(files["portable"], threads=1)
logits = run.run(None, {run.get_inputs()[0].name: pictures})[0]

figure, row = plt.subplots(1, 8, figsize=(10, 1.7), layout="constrained")
for axes, picture, answer, truth in zip(row, sample.x, logits.argmax(1), sample.y, strict=False):
    axes.imshow(picture.permute(1, 2, 0))
    axes.set_title(CIFAR10_CLASSES[answer], fontsize=9, color="#3fa27a" if answer == truth else "#cf5c60")
    axes.set_axis_off()

# %%
# What it takes
# -------------
# One image, one thread, in interleaved rounds, on the machine that built this page, which was not left alone: take
# the order from it, not the figures. Those of a quiet machine are in :doc:`/benchmarks/runtimes`.
from pdecnn.analysis import measure

fast = pdecnn.optimize_for_inference(model, x)
one = pictures[:1]
sessions = {f"ONNX, {ops}": session(path, ops=ops, threads=1) for ops, path in files.items()}
candidates = {name: (lambda s=s: s.run(None, {s.get_inputs()[0].name: one})) for name, s in sessions.items()}
candidates |= {
    name: (lambda net=net: net(torch.from_numpy(one))) for name, net in (("PyTorch", model), ("optimized", fast))
}
with torch.no_grad():
    timings = measure(candidates, rounds=20, max_seconds=5)
ms = {name: 1e3 * t.median for name, t in sorted(timings.items(), key=lambda item: item[1].median)}

figure, axes = plt.subplots(figsize=(6, 2), layout="constrained")
bars = axes.barh(list(ms), list(ms.values()), color="#3b8ec2", height=0.6)
axes.bar_label(bars, [f"{v:.2f} ms" for v in ms.values()], padding=3)
axes.margins(x=0.15)
axes.invert_yaxis()

# %%
# One C file
# ----------
# No library, no ``malloc``: weights, code and a plan of the memory, for a microcontroller. It is compiled and
# compared too where there is a compiler.
import shutil

report = pdecnn.export(model, folder / "net.c", x, format="c", check=shutil.which("cc") is not None)
print(f"SRAM {report.footprint.sram:,} bytes, Flash {report.footprint.flash:,} bytes of constants")
print((folder / "net.h").read_text())
shutil.rmtree(folder)
