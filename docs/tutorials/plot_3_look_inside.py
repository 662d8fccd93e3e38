"""
Look inside a Global layer
==========================

A Global layer computes a velocity and a diffusivity for every pixel and channel, and then moves the feature map along
them. All of it can be seen. The net is the trained ``cifar_resnet_tiny_global`` of the package, with images of
CIFAR-10.
"""

# %%
# A trained net and an image
# --------------------------
import matplotlib.pyplot as plt
import timm
import torch

from pdecnn.layers import GlobalLayer, with_steps
from pdecnn.training.datasets import CIFAR10_CLASSES, load_sample

torch.set_num_threads(1)
model = timm.create_model("cifar_resnet_tiny_global.cifar10", pretrained=True).eval()
sample = load_sample("cifar10")
mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
normal = (sample.x / 255 - mean) / std

layers = [m for m in model.modules() if isinstance(m, GlobalLayer)]
seen = {}
for layer in layers:
    layer.register_forward_pre_hook(lambda m, args: seen.__setitem__(m, args[0]))
with torch.no_grad():
    logits = model(normal)
accuracy = 100 * (logits.argmax(1) == sample.y).float().mean()
print(f"{len(layers)} Global layers; {accuracy:.0f} % of {len(sample)} images are right")

# %%
# The flow
# --------
# Velocities u, v and diffusivities come out of depth-wise convolutions of the first guess, once, before the steps.
# Shown are the means over the channels of the first layer. Where one is 0 everywhere
# its ReLU lets nothing pass: the layer then carries one way only.
which, layer = 4, layers[0]
with torch.no_grad():
    guess, _ = layer.first_guess(seen[layer])
    maps = [torch.as_tensor(q).expand_as(guess)[which].mean(0) for q in layer.coefficients(guess)]

figure, row = plt.subplots(1, 6, figsize=(10, 2.1), layout="constrained")
picture = sample.x[which].permute(1, 2, 0)
row[0].imshow(picture)
row[0].set_title(CIFAR10_CLASSES[sample.y[which]])
places = torch.arange(1, 32, 3)
row[1].imshow(picture, alpha=0.4)
u, v = (q[places][:, places] for q in maps[:2])
row[1].quiver(places, places, u, v, angles="xy", pivot="mid", color="#cf5c60", width=0.01)
row[1].set_title("flow (u, v)")
for axes, q, name in zip(row[2:], maps, ("u", "v", "D_x", "D_y"), strict=True):
    axes.imshow(q, cmap="magma", vmin=0)
    axes.set_title(f"{name}, up to {q.max():.2f}", fontsize=9)
for axes in row:
    axes.set(xticks=[], yticks=[])

# %%
# Step by step
# ------------
# ``trajectory`` gives the states h^0 ... h^K. Three channels of the first layer:
with torch.no_grad():
    states = layer.trajectory(seen[layer][which : which + 1])

figure, grid = plt.subplots(3, len(states), figsize=(9, 4.6), layout="constrained")
for line, channel in zip(grid, (0, 3, 6), strict=True):
    top = max(float(h[0, channel].abs().max()) for h in states)
    for k, (axes, h) in enumerate(zip(line, states, strict=True)):
        axes.imshow(h[0, channel], cmap="RdBu_r", vmin=-top, vmax=top)
        axes.set(xticks=[], yticks=[])
        if channel == 0:
            axes.set_title(f"k = {k}")
    line[0].set_ylabel(f"channel {channel}")

# %%
# Is it stable?
# -------------
# The scheme is stable where the Courant number stays below its bound. ``stability`` measures it on real inputs.
for i, layer in enumerate(layers):
    print(f"layer {i}:", layer.stability(seen[layer]))

# %%
# The answer, step by step
# ------------------------
# What would the net say after fewer or more steps? The probability of the right class, for six images:
steps = range(1, 11)
with torch.no_grad():
    right = []
    for K in steps:
        with with_steps(model, K):
            right.append(model(normal[:6]).softmax(1)[range(6), sample.y[:6]])

figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
for i, line in enumerate(torch.stack(right, 1)):
    axes.plot(steps, line, marker="o", markersize=3, label=f"{i}: {CIFAR10_CLASSES[sample.y[i]]}")
axes.axvline(5, color="#8b95a3", linestyle=":")
axes.set(xlabel="K", ylabel="probability of the right class")
_ = axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
