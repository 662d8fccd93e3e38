"""Whether batch norms learn new statistics while a student is distilled, or keep those that it came with.

A network that was trained on other images than those at hand, such as all of ImageNet, has statistics of those. To
take on new ones in a short distillation can cost more than all that the student has lost.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pdecnn.condensation.fit import answer_distance
from pdecnn.shared.modules import eval_mode
from pdecnn.shared.trees import arguments, map_tensors

GENTLER = 0.02  # times the learning rate, for AdamW: norms that keep their statistics do not undo too long a step


@torch.no_grad()
def keep_statistics(student: nn.Module, teacher: nn.Module, x: Any) -> bool:
    """Whether the teacher with the statistics of the batch `x` is further from itself than the student is from it."""
    twin = copy.deepcopy(teacher)
    norms = [m for m in twin.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    device = next((p.device for p in teacher.parameters()), torch.device("cpu"))
    given = arguments(teacher, map_tensors(x, lambda q: q.to(device)))
    if not norms:
        return False
    with eval_mode(student), eval_mode(teacher), eval_mode(twin):
        wanted = teacher(*given)
        for norm in norms:
            norm.train()
        try:
            return answer_distance(twin(*given), wanted) > answer_distance(student(*given), wanted)
        except ValueError:  # one value per channel has no variance
            return False
