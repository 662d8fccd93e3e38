"""
Condense your own network
=========================

You have a trained CNN. It repeats a block at each resolution; we keep the first of them, put one cheap layer in the
place of the others, and let the new network learn from the old one. The network here is a ResNet-32 for 28x28 images
of clothes; any CNN goes the same way.
"""

# %%
# The network, and what could be done
# -----------------------------------
# A plan tells what would be replaced and what it would cost, before anything happens.
import matplotlib.pyplot as plt
import timm
import torch

import pdecnn
from pdecnn.training import evaluate, load_dataset
from pdecnn.training.own import in_memory

torch.set_num_threads(1)
teacher = timm.create_model("fashion_resnet32.fashion_mini", pretrained=True).eval()
x = torch.zeros(1, 1, 28, 28)

plan = pdecnn.plan(teacher, x, keep=2, K=1)  # of each run two blocks stay; one step of the equation for the others
print(plan)

# %%
# A new network, untouched weights
# --------------------------------
# ``apply`` makes a new model. What stays keeps its weights; what is new starts as the identity.
student = plan.apply(teacher)
before, after = pdecnn.profile(teacher, x), pdecnn.profile(student, x)
print(f"parameters    {before.params:>10,} -> {after.params:>9,}")
print(f"multiply-adds {before.exact:>10,} -> {after.exact:>9,}")

# %%
# Learning from the teacher
# -------------------------
# First each new layer is fitted to the feature maps that left the removed blocks: no labels are needed. Then the
# whole student learns to answer as the teacher does. One epoch of 1,500 images is enough to see it work; the whole
# job, with all images and ten epochs, is ``pdecnn condense`` in the shell.
data = load_dataset("fashion-mini").limit(train=1500, test=500)
images = in_memory(data, 64, 0)

accuracy = {
    "teacher": evaluate(teacher, images.evaluation).accuracy,
    "new": evaluate(student, images.evaluation).accuracy,
}
pdecnn.condensation.fit_layers(student, teacher, plan, images.plain, steps=20)
accuracy["fitted"] = evaluate(student, images.evaluation).accuracy
pdecnn.distill(student, teacher, images, epochs=1, lr=0.02, new=1.0)
accuracy["distilled"] = evaluate(student, images.evaluation).accuracy

figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
bars = axes.bar(list(accuracy), list(accuracy.values()), color=["#8b95a3", *["#3b8ec2"] * 3], width=0.6)
axes.bar_label(bars, [f"{a:.1f} %" for a in accuracy.values()], padding=2)
axes.set(ylabel="accuracy, 500 images", ylim=(0, 100))

# %%
# Both answers, side by side
# --------------------------
pictures = data.test.x[:10]
mean, std = torch.tensor(data.mean).view(-1, 1, 1), torch.tensor(data.std).view(-1, 1, 1)
normal = (pictures / 255 - mean) / std
with torch.no_grad():
    answers = [net.eval()(normal).argmax(1) for net in (teacher, student)]

figure, grid = plt.subplots(2, 5, figsize=(8, 3.9), layout="constrained")
for axes, picture, old, new in zip(grid.flat, pictures, *answers, strict=True):
    axes.imshow(picture[0], cmap="gray")
    axes.set_axis_off()
    axes.set_title(
        f"{data.classes[old]}\n{data.classes[new]}", fontsize=8, color="#3fa27a" if old == new else "#cf5c60"
    )

# %%
# Keep it
# -------
# A checkpoint is a folder of two files that loads without any code of yours and is never unpickled.
import tempfile

with tempfile.TemporaryDirectory() as folder:
    pdecnn.save(student, folder)
    again = pdecnn.load(folder)
    with torch.no_grad():
        print("the same answers:", torch.equal(again.eval()(normal), student(normal)))
