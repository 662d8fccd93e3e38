"""What the clock of a search counts, and that all its networks are what they are said to be."""

import time
from functools import partial

import torch
from torch import nn

from pdecnn.condensation import latency


def test_every_network_is_compiled_not_the_first_eight(monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    nets = {i: nn.Sequential(*(nn.Linear(3, 3) for _ in range(i + 1))) for i in range(10)}
    latency.time_models(nets, torch.randn(2, 3), "compile", rounds=3)
    assert len(graphs) == 10


class Waits(nn.Module):
    """Lets others have the core for a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x @ x


def test_on_one_thread_what_others_do_is_not_counted():
    x = torch.randn(200, 200)
    times = latency.time_models({"waits": Waits(0.05), "works": Waits(0.0)}, x, "eager", rounds=3)
    assert times["waits"] < 25.0
    assert latency.time_models({"waits": Waits(0.05)}, x, "eager", 2, rounds=3)["waits"] > 50.0


def test_the_first_call_belongs_to_the_preparation(monkeypatch):
    """A runtime may compile in it: the time that is left is guessed from the calls that come after."""
    calls = []
    monkeypatch.setattr(latency, "make_runner", lambda _, model, *rest: (lambda x: calls.append(model), None))
    nets = {"a": nn.ReLU(), "b": nn.Tanh()}
    with latency.served(nets, torch.zeros(1, 2), "compile", 1, None) as ready:
        assert calls == list(nets.values())
        ready["b"]()
    assert calls == [*nets.values(), nets["b"]]
