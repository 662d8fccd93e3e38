"""Symmetry: weights move in their group, logits stand still."""

import pytest
import torch

from pdecnn.symmetry import Group
from pdecnn.viz.studio import nets, pictures, turning


@pytest.mark.parametrize("group", list(Group))
def test_every_way_stays_in_its_group_and_starts_at_the_identity(group):
    assert torch.equal(turning.element(group, 6, 0.0), torch.eye(6, dtype=torch.float64))
    T = turning.element(group, 6, 0.8, seed=2)
    assert group.contains(T)
    assert (group is Group.TRIVIAL) == torch.equal(T, torch.eye(6, dtype=torch.float64))


def test_weights_move_and_logits_stand_still_unless_the_group_is_left():
    net = nets.open_net("fashion_hyperbolic_cp.fashion_mini")
    ready = turning.open_turnable(net, pictures.to_input(nets.pick(net, 0), net.wanted))
    found = turning.turn(ready, 0.5, [1, 2, 3])
    assert found.moved > 0.3
    assert found.difference < 1e-12
    assert "logits stand still" in turning.says(found, False)
    assert turning.weight_pictures(found).count("<figure>") == turning.SHOWN
    assert turning.logit_bars(found, net).count('class="bar"') == 20
    assert "O(16)" in turning.group_table(ready)
    with torch.no_grad():
        assert torch.allclose(found.logits[0].float(), net.model(ready.x.float())[0], atol=1e-4)
    still = turning.turn(ready, 0.0, [1, 2, 3])
    assert still.moved < 1e-12
    broken = turning.turn(ready, 0.5, [2], break_it=True)
    assert broken.difference > 1e-3
    assert "no element of the group" in turning.says(broken, True)
    with pytest.raises(ValueError, match="no stage 4"):
        turning.turn(ready, 0.5, [4])
