"""One-byte edits of an exported file, with our operators as nodes: it runs or is refused; no crash and no hang."""

import json
import os
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torture_log import LONG, note

from pdecnn import functional
from pdecnn.deploy.onnx import to_onnx
from pdecnn.deploy.sessions import library_path, session_options
from pdecnn.layers import GlobalLayer

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

SECONDS = 20  # for one file; K may be 10,000
BATCH = 2000  # edits for one process
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)


class Net(nn.Module):
    """Both of our operators, each with maps and numbers as coefficients."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = GlobalLayer(2, K=2)

    def forward(self, x):
        return functional.advection_diffusion(self.layer(x), x, 0.5, 0.1, x.abs(), x, K=2)


@pytest.fixture(scope="module")
def exported():
    """The file's bytes, and the places of our nodes and of what they alone read."""
    try:
        library_path()
    except RuntimeError as error:
        pytest.skip(str(error))
    proto = to_onnx(Net().eval(), (torch.from_numpy(X),), ops="fused")
    data = proto.SerializeToString()
    nodes = [node for node in proto.graph.node if node.domain == "pdecnn"]
    assert sorted(node.op_type for node in nodes) == ["AdvectionDiffusion", "GlobalLayer"]
    own = set()
    for part in nodes:
        text = part.SerializeToString()
        assert data.count(text) == 1
        own |= set(range(data.index(text), data.index(text) + len(text)))
    return data, sorted(own)


def edits(data, own, values, others, seed=0):
    """`values` edits of each byte in `own`, and so many of `others` anywhere else."""
    rng = random.Random(seed)
    rest = sorted(set(range(len(data))) - set(own))
    places = [(at, value) for at in own for value in rng.sample(range(1, 256), values)]
    places += [(rng.choice(rest), rng.randrange(1, 256)) for _ in range(others)]
    for at, change in places:
        yield data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]


def judge(data, options):
    try:
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        out = session.run(None, {session.get_inputs()[0].name: X})
    except Exception as error:  # ONNX Runtime's own, of no common kind
        return "refused by an operator" if "pdecnn::" in str(error) else "refused by the runtime"
    return "ran" if all(isinstance(q, np.ndarray) for q in out) else "no result"


def campaign(files, folder):
    """Counts of what became of the files; a process of its own reads some of them, so that its crash is seen."""
    counts, files = {}, list(files)
    for begin in range(0, len(files), BATCH):
        outcome, last = folder / f"outcome{begin}", folder / "last.onnx"
        child = os.fork()
        if child == 0:
            try:
                found = {}
                options = session_options(threads=1)
                options.log_severity_level = 4
                for data in files[begin : begin + BATCH]:
                    last.write_bytes(data)  # for whoever looks for the cause of a crash
                    signal.alarm(SECONDS)
                    verdict = judge(data, options)
                    found[verdict] = found.get(verdict, 0) + 1
                signal.alarm(0)
                outcome.write_text(json.dumps(found))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"ended by {signal.Signals(os.WTERMSIG(status)).name} at {last}"
        for verdict, number in json.loads(outcome.read_text()).items():
            counts[verdict] = counts.get(verdict, 0) + number
    assert sum(counts.values()) == len(files)
    assert set(counts) == {"refused by an operator", "refused by the runtime", "ran"}
    return counts


def test_some_edits_of_an_exported_file(exported, tmp_path):
    data, own = exported
    campaign(edits(data, own, 1, 300), tmp_path)


@pytest.mark.slow
def test_every_edit_of_our_nodes(exported, tmp_path):
    data, own = exported
    counts = campaign(edits(data, own, 255 if LONG else 4, 0), tmp_path)
    note(f"edits of our nodes in an exported file, {len(own)} bytes: {json.dumps(counts)}")


@pytest.mark.slow
def test_edits_of_the_rest_of_the_file(exported, tmp_path):
    data, own = exported
    counts = campaign(edits(data, own, 0, 10_000 if LONG else 1000), tmp_path)
    note(f"edits of the rest of an exported file: {json.dumps(counts)}")
