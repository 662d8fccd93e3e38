"""
Turn the weights, keep the answers
==================================

The weights of most networks can be permuted without changing what they compute. Those of a hyperbolic network in CP
form can be *turned*, continuously, by any rotation of its channels: other weights everywhere, the same function.
"""

# %%
# Which group?
# ------------
# It depends on what stands on the stream of each stage.
import matplotlib.pyplot as plt
import timm
import torch

from pdecnn.symmetry import symmetry_of, transform, verify
from pdecnn.training import load_dataset

torch.set_num_threads(1)
model = timm.create_model("fashion_hyperbolic_cp.fashion_mini", pretrained=True).eval()
for stage in symmetry_of(model).values():
    print(f"stage {stage.stage}: {stage.label:24} {stage.reason}")

# %%
# A rotation, from nothing to a full turn
# ---------------------------------------
# We turn the second stage in one plane after another, further and further, and watch a matrix of weights and the
# answers.
data = load_dataset("fashion-mini")
mean, std = torch.tensor(data.mean).view(-1, 1, 1), torch.tensor(data.std).view(-1, 1, 1)
x = (data.test.x[:64] / 255 - mean) / std

n = symmetry_of(model)[2].width
torch.manual_seed(0)
generator = torch.randn(n, n, dtype=torch.float64)
generator = (generator - generator.T) / n**0.5

amounts = (0.0, 0.05, 0.2, 1.0)
turned = {a: transform(model, {2: torch.matrix_exp(a * generator)}) for a in amounts}


def reading(net):
    """The first matrix that reads the stream of stage 2."""
    weights = [p for name, p in net.named_parameters() if name.startswith("stages.1.1") and p.shape[1:] == (n, 1, 1)]
    return weights[0].detach().flatten(1)


figure, grid = plt.subplots(2, len(amounts), figsize=(9, 4.4), layout="constrained", height_ratios=(2, 1))
for (top, bottom), a in zip(grid.T, amounts, strict=True):
    weight = reading(turned[a])
    top.imshow(weight, cmap="RdBu_r", vmin=-0.4, vmax=0.4, aspect="auto")
    top.set(title=f"turned by {a:g}", xticks=[], yticks=[])
    with torch.no_grad():
        bottom.bar(range(10), turned[a](x[:1])[0], color="#3b8ec2")
    bottom.set(xticks=[], ylim=(-8, 14))
grid[0, 0].set_ylabel("weights")
grid[1, 0].set_ylabel("logits")

# %%
# The weights move, the answers stand still. What is left is the rounding of the new weights to float32:
for a, net in turned.items():
    print(
        f"turned by {a:4}: weights changed by {float((reading(net) - reading(turned[0.0])).norm()):6.3f}, "
        f"answers by {verify(model, net, x):.1e}"
    )

# %%
# What is not in the group is refused
# -----------------------------------
# The activation of that stage looks at lengths of channel vectors, so that only rotations and reflections pass. A
# stretch does not, and ``force=True`` shows what it would do.
stretch = torch.eye(n, dtype=torch.float64)
stretch[0, 0] = 1.5
try:
    transform(model, {2: stretch})
except ValueError as error:
    print(error)
print(f"\nforced, the answers change by {verify(model, transform(model, {2: stretch}, force=True), x):.2f}")

# %%
# The weights between two nets
# ----------------------------
# Half-way between a network and its turned twin lies a worse one, unless the two are aligned first:
from pdecnn.symmetry import align, average, fold_norms
from pdecnn.training import EvalLoader, evaluate

images = EvalLoader(data.test[:500], 100, data.mean, data.std)
plain, far = fold_norms(model), turned[1.0]
aligned = align(plain, far, x)
shown = {
    "the net": plain,
    "turned": far,
    "average": average(plain, far),
    "average, aligned": average(plain, aligned.model),
}
figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
accuracy = {name: evaluate(net, images).accuracy for name, net in shown.items()}
bars = axes.bar(list(accuracy), list(accuracy.values()), color=["#8b95a3", "#3b8ec2", "#cf5c60", "#3fa27a"], width=0.6)
axes.bar_label(bars, [f"{a:.1f} %" for a in accuracy.values()], padding=2)
axes.set(ylim=(0, 100), ylabel="accuracy, %")
