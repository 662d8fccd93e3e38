"""Look inside: states, fields, reach and answers are those of the net."""

import numpy as np
import pytest
import torch

from pdecnn.layers import GlobalLayer
from pdecnn.viz.studio import inside, inside_drawn, nets, pictures


@pytest.fixture(scope="module")
def looked():
    net = nets.open_net("cifar_resnet_tiny_global.cifar10")
    return inside.look(net, pictures.to_input(nets.pick(net, 0), net.wanted))


def test_the_states_are_those_of_the_layer_and_end_in_its_output(looked):
    view = looked.layers[0]
    layer = inside.pde_layers(looked.model)[view.path]
    assert isinstance(layer, GlobalLayer)
    own = layer.trajectory(view.given)
    assert len(own) == view.K + 1
    assert all(torch.equal(a[0], b) for a, b in zip(own, view.states, strict=False))
    u, v, D_x, _ = layer.coefficients(own[0])
    assert torch.equal(view.u, torch.as_tensor(u).expand_as(own[0])[0])
    assert torch.equal(view.v, torch.as_tensor(v).expand_as(own[0])[0])
    assert torch.equal(view.D_x, torch.as_tensor(D_x).expand_as(own[0])[0])
    found = layer.stability(view.given)
    assert float(view.courant.max()) == pytest.approx(found.cfl, rel=1e-5)
    assert float(view.unstable.double().mean()) == pytest.approx(found.von_neumann_fraction, rel=1e-5)


def test_confidence_against_k_is_that_of_the_net_with_k_steps(looked):
    with torch.no_grad():
        own = looked.net.model(looked.x).softmax(1)[0]
    assert torch.allclose(looked.probabilities, own)
    answer = next(a for a in looked.answers if looked.steps == a.K)
    assert (answer.best, answer.confidence) == (int(own.argmax()), pytest.approx(float(own.max())))
    assert answer.confidence == answer.of_own
    assert {m.K for m in inside.pde_layers(looked.model).values()} == {looked.steps}  # restored
    assert "It says cat" in inside_drawn.verdict(looked)


def test_a_pixel_depends_on_what_k_steps_can_reach(looked):
    few, image = inside.reach(looked, 0, 16, 16, 1)
    more, _ = inside.reach(looked, 0, 16, 16, 3)
    y, x = few.nonzero().T
    assert ((y - 16).abs() + (x - 16).abs()).max() <= 3  # a step, and the stencil of its coefficients
    assert (few > 0).sum() < (more > 0).sum() < more.numel()
    assert image.shape == (32, 32)
    assert few.argmax() == 16 * 32 + 16
    with pytest.raises(ValueError, match="0 to 31 across"):
        inside.reach(looked, 0, 16, 32, 1)


def test_all_is_drawn_and_unstable_pixels_are_framed(looked):
    view = looked.layers[0]
    drawn = inside_drawn.fields(view, -1)
    framed = int(view.unstable.any(0).sum())
    assert drawn.count("<figure>") == 4
    assert drawn.count("h.76v.76") == framed > 0
    assert f"{framed} of 1024 pixels framed" in drawn
    assert "h^2" in inside_drawn.state(view, 0, 2)
    assert inside_drawn.state(view, -1, 2) != inside_drawn.state(view, -1, 3)
    assert inside_drawn.reach_pictures(looked, 2, 3, 3, 2).count("<figure>") == 2
    assert inside_drawn.confidence_chart(looked).count('class="point"') in (inside.MOST, 2 * inside.MOST)


def test_every_state_is_in_the_film_and_the_present_one_is_framed(looked):
    view = looked.layers[0]
    drawn = inside_drawn.state(view, 0, 3)
    assert drawn.count("<figure>") == 2 + view.K + 1
    before, _, after = drawn.partition("<rect")
    assert before.rpartition('aria-label="')[2].partition('"')[0] == "h^3"
    assert "<rect" not in after


@pytest.mark.parametrize("number, side", [(0, 32), (2, 8)])
def test_the_pixel_that_was_clicked_is_the_one_that_is_framed(looked, number, side):
    view = looked.layers[number]
    assert view.states[0].shape[1:] == (side, side)
    plain, marked = inside_drawn.plane(view, 0, 2), inside_drawn.plane(view, 0, 2, (3, 5))
    down, across = np.nonzero((plain != marked).any(-1))
    assert {inside_drawn.pixel_at(view, x, y) for y, x in zip(down, across, strict=True)} == {(3, 5)}
    assert inside_drawn.pixel_at(view, plain.shape[1], plain.shape[0]) == (side - 1, side - 1)
    assert (inside_drawn.plane(view, 0, 2, (3, side)) == plain).all()  # no such pixel


def test_a_net_without_such_layers_is_told():
    with pytest.raises(ValueError, match="cifar_resnet32 has no Global layer"):
        inside.look(nets.open_net("cifar_resnet32"), torch.zeros(1, 3, 32, 32))


def test_transport_grows_where_its_spectrum_says():
    from pdecnn.layers.transport import Transport

    layer = Transport(2)
    with torch.no_grad():
        layer.velocity.copy_(torch.tensor([[0.2, 1.5], [0.0, 0.0]]))
        layer.diffusion.fill_(0.2)
    assert inside._growing(layer).tolist() == [False, True]
