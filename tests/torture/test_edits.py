"""Every one-byte edit and every truncation of every kind of file: loaded as written, or refused; no crash, no hang."""

import json
import math
import os
import random
import signal

import pytest
from entrances import ENTRANCES
from torture_log import LONG, note

from pdecnn.shared.reading import FileError

SECONDS = 10  # for one read


def edits(data, share, seed=0):
    """All truncations and a share of all one-byte edits; the share 1 is every one of them."""
    yield from (data[:n] for n in range(len(data)))
    rng = random.Random(seed)
    for at, byte in enumerate(data):
        for value in range(256):
            if value != byte and (share >= 1 or rng.random() < share):
                yield data[:at] + bytes([value]) + data[at + 1 :]


def same(a, b):
    if isinstance(a, float) or isinstance(b, float):
        return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def judge(entrance, file, original, data):
    """`"refused"`, `"loaded"`, or what is wrong."""
    file.write_bytes(data)
    signal.alarm(SECONDS)
    try:
        found = entrance.read(file)
    except FileError as error:
        return "refused" if file.name in str(error) or file.parent.name in str(error) else f"no file named: {error}"
    except Exception as error:
        return f"raw {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    if entrance.written is None:
        return "loaded in spite of its digest"
    try:
        expected = entrance.written(data)
    except Exception as error:
        return f"loaded what is not readable: {error!r}"
    return "loaded" if same(found, expected) else f"loaded {found}, written is {expected}"


def campaign(name, folder, share):
    """Counts of what became of the edits, made in a process of its own, whose crash would be noticed."""
    outcome = folder / "outcome.txt"
    place = folder / "place"
    place.mkdir()
    child = os.fork()
    if child == 0:
        counts = {}
        try:
            entrance = ENTRANCES[name]
            file = entrance.make(place)
            original = file.read_bytes()
            assert entrance.read(file) is not None
            for data in edits(original, share):
                (folder / "last").write_bytes(data)  # for whoever looks for the cause of a crash
                verdict = judge(entrance, file, original, data)
                counts[verdict] = counts.get(verdict, 0) + 1
                if len(counts) > 8:
                    break
            outcome.write_text(json.dumps(counts))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"{name}: ended by signal {os.WTERMSIG(status)} at {(folder / 'last').read_bytes()[:300]!r}"
    return json.loads(outcome.read_text())


def check(name, folder, share):
    counts = campaign(name, folder, share)
    assert set(counts) <= {"refused", "loaded"}, {k: v for k, v in counts.items() if k not in ("refused", "loaded")}
    assert counts["refused"] > 50
    if ENTRANCES[name].written is None:
        assert "loaded" not in counts
    return counts


@pytest.mark.parametrize("name", ENTRANCES)
def test_some_edits_and_every_truncation(tmp_path, name):
    check(name, tmp_path, 0.008)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRANCES)
def test_every_edit_and_every_truncation(tmp_path, name):
    counts = check(name, tmp_path, 1 if LONG else 0.05)
    note(f"edits of {name}: {json.dumps(counts)}")
