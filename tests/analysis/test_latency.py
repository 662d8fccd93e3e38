import re
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pdecnn.analysis import latency
from pdecnn.analysis.latency import Timing, environment, measure, percentile, threads


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_percentile_is_numpys(samples, q):
    assert percentile(samples, q) == pytest.approx(np.quantile(samples, q), rel=1e-12, abs=1e-9)


def test_known_durations_are_measured():
    timings = measure({"5ms": lambda: time.sleep(0.005), "20ms": lambda: time.sleep(0.02)}, rounds=5, warmup=0)
    assert 0.005 <= timings["5ms"].p20 <= timings["5ms"].median <= timings["5ms"].p80
    assert 2 < timings["5ms"].speedup(timings["20ms"]).median < 4.5
    assert timings["5ms"].to_dict()["rounds"] == 5


@pytest.mark.parametrize(
    "names, rounds", [("ab", "abbaabba"), ("abc", "abcacbcabcbabcabac"), ("abcd", "abcdadcbcdabcbad")]
)
def test_candidates_are_interleaved_in_an_order_that_favours_none(names, rounds):
    order: list[str] = []

    def named(name):
        def call():
            order.append(name)
            time.sleep(0.003)

        return call

    count = len(rounds) // len(names)
    measure({n: named(n) for n in names}, rounds=count, warmup=1, min_seconds=1e-3, settle_seconds=0)
    said = "".join(order[2 * len(names) :])  # after warm-up and calibration
    assert said == rounds
    assert len(names) == 2 or all(a != b for a, b in pairwise(said))


def test_each_sample_is_preceded_by_calls_that_are_not_timed(monkeypatch):
    order: list[str] = []
    clock = [0.0]
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])

    def named(name):
        def call():  # the first call after the other candidate is slow, as with cold caches
            clock[0] += 0.03 if order and order[-1] != name else 0.003
            order.append(name)

        return call

    timings = measure({"a": named("a"), "b": named("b")}, rounds=4, warmup=1, min_seconds=1e-3, settle_seconds=6e-3)
    assert timings["a"].samples + timings["b"].samples == pytest.approx([0.003] * 8)
    assert order.count("a") == order.count("b") == 2 + 4 * 3  # two of six milliseconds to settle, one that is timed


def test_short_calls_are_repeated_within_a_sample():
    calls = 0

    def count():
        nonlocal calls
        calls += 1

    measure({"f": count}, rounds=3, warmup=0, min_seconds=1e-3, settle_seconds=2e-3, clock=lambda: 1e-5 * calls)
    assert calls == 1 + 3 * (100 + 200)  # of ten microseconds each


def test_time_limit_keeps_three_rounds():
    timings = measure({"f": lambda: time.sleep(0.002)}, rounds=1000, warmup=0, max_seconds=0.0)
    assert len(timings["f"].samples) == 3


def test_speedup_is_the_median_ratio_within_rounds():
    fast, slow = Timing("fast", (1.0, 10.0, 1.0)), Timing("slow", (3.0, 20.0, 4.0))
    assert fast.speedup(slow).samples == (3.0, 2.0, 4.0)
    assert fast.speedup(slow).median == 3.0


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="expected at least one candidate"):
        measure({})
    with pytest.raises(ValueError, match="rounds=0"):
        measure({"f": int}, rounds=0)
    with pytest.raises(ValueError, match="Measure both in one call"):
        Timing("a", (1.0,)).speedup(Timing("b", (1.0, 2.0)))


def test_threads_are_restored_even_after_an_error():
    before = torch.get_num_threads()
    seen = []

    def fail():
        with threads(2):
            seen.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [2]
    assert torch.get_num_threads() == before


def test_environment_names_machine_and_versions(monkeypatch):
    e = environment()
    assert e["torch"] == torch.__version__
    assert e["cores"] >= 1
    assert len(str(e["cpu"])) > 2
    assert re.fullmatch(r"[0-9a-f]{12,40}\+?|unknown", str(e["commit"]))
    monkeypatch.setenv("PATH", "")
    assert latency._commit() == "unknown"
    monkeypatch.setattr(latency.os, "getloadavg", lambda: (1.234, 0.0, 0.0), raising=False)
    assert environment()["load"] == [e["load"][0], 1.23]


def test_the_clock_waits_for_a_gpu_in_use(monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    monkeypatch.setattr(latency.time, "perf_counter", lambda: events.append("clock") or float(len(events)))
    latency._time(lambda: events.append("call"), 2)
    assert events == ["wait", "clock", "call", "call", "wait", "clock"]
