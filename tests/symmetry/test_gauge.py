import pytest
import torch
from symmetry_networks import images, network

from pdecnn.symmetry import fold_norms, quantise_gauge, verify
from pdecnn.symmetry.gauge import quantised, round_weights
from pdecnn.symmetry.matrices import stream_matrices


def with_outliers(activation):
    net = fold_norms(network("cp", activation))
    for m in stream_matrices(net):
        m.layer.weight.data.view(-1)[::17] *= 6
    return net


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", ["softball", "none"])
def test_outliers_are_turned_into_the_bulk(activation, per_channel):
    net = with_outliers(activation)
    found = quantise_gauge(net, images(), per_channel=per_channel, steps=80)
    assert found.weight_error_after < (0.85 if per_channel else 0.6) * found.weight_error_before
    if not per_channel:
        assert found.output_error_after < found.output_error_before
    assert verify(net, found.model, images()) < 1e-11
    rounded = verify(net, quantised(found.model, 8, per_channel), images())
    assert rounded == pytest.approx(found.output_error_after, rel=1e-6)


def test_it_never_gets_worse():
    net = network("cp", "relu", linear_stem=False)
    found = quantise_gauge(net, images(), steps=1, lr=5.0)
    assert found.weight_error_after <= found.weight_error_before


def test_rounding_is_to_the_nearest_of_the_levels():
    W = torch.linspace(-1, 1, 1001, dtype=torch.float64).view(7, 143)
    rounded = round_weights(W, 4)
    assert len(rounded.unique()) == 15
    assert (rounded - W).abs().max() <= 0.5 / 7 + 1e-12
    rows = round_weights(W, 4, per_channel=True)
    assert (rows - W).square().sum() < (rounded - W).square().sum()


def test_refusals():
    with pytest.raises(ValueError, match="bits must be at least 2, got 1"):
        quantise_gauge(network(), images(), bits=1)
    with pytest.raises(ValueError, match="no stage has a continuous symmetry"):
        quantise_gauge(network("cp", "hardtanh", activation_at="all"), images())
