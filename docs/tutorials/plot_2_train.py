"""
Train a Global net
==================

The nets of the papers are in timm's registry. Here the smallest ResNet-Global, 14,000 parameters, learns to tell ten
kinds of clothes, from nothing.
"""

# %%
# A recipe decides everything
# ---------------------------
# It is one YAML file; every setting can be changed by name. ``pdecnn recipes`` lists them.
import tempfile

import matplotlib.pyplot as plt
import torch

import pdecnn
from pdecnn.training import build_model, evaluate, fit, load_dataset, load_recipe, make_loaders

torch.set_num_threads(1)
recipe = load_recipe("quick/fashion-mini").override(["epochs=3", "evaluate_every=1"])
data = load_dataset("fashion-mini").limit(train=1500, test=500)
print(recipe.model.name, "|", recipe.optimizer.name, "|", len(data.train), "images of", data.num_classes, "classes")

# %%
# The net and its Global layers
# -----------------------------
# After each stage but the last the feature map becomes the initial state of an equation, and is what it is K steps
# later.
model = build_model(recipe.model.model_dump())
print(pdecnn.profile(model, torch.zeros(1, *data.image_shape)))

# %%
# Training
# --------
# ``fit`` writes a run folder: checkpoints that survive a ``kill -9``, a table of every epoch, the environment.
with tempfile.TemporaryDirectory() as folder:
    result = fit(model, data, recipe, run_dir=folder)

figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.8), layout="constrained")
epochs = [row["epoch"] for row in result.history]
left.plot(epochs, [row["train_loss"] for row in result.history], marker="o", color="#3b8ec2")
left.set(xlabel="epoch", ylabel="loss", xticks=epochs)
for key, label, colour in (("train_accuracy", "training", "#8b95a3"), ("eval_accuracy", "test", "#3b8ec2")):
    right.plot(epochs, [row[key] for row in result.history], marker="o", label=label, color=colour)
right.set(xlabel="epoch", ylabel="accuracy, %", xticks=epochs)
_ = right.legend()

# %%
# More or fewer steps
# -------------------
# No weight depends on K, so the trained net runs with any K. It was trained with five and is best there; a net that
# is trained as a knob serves every K: see :doc:`K as a knob </knob>`.
from pdecnn.layers import with_steps

images = make_loaders(data, recipe)
found = {}
for K in (1, 2, 3, 5, 8, 10):
    with with_steps(model, K):
        found[K] = evaluate(model, images.evaluation).accuracy

figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
axes.plot(list(found), list(found.values()), marker="o", color="#e08a3c")
axes.axvline(5, color="#8b95a3", linestyle=":")
axes.set(xlabel="steps K when it runs", ylabel="accuracy, %")
