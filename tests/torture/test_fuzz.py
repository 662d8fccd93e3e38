"""The native library fed by libFuzzer under sanitizers, and its calls on several threads under ThreadSanitizer.

tests/fuzz has the programs, and in corpus/ what earlier runs found worth keeping. Every `make test` replays that,
without clang: tests/kernels/test_sanitizers.py.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from torture_log import LONG, note

FUZZ = Path(__file__).parent.parent / "fuzz"
RUNS = {"calls": 500_000 if LONG else 20_000, "ort": 2_000_000 if LONG else 20_000}
ROUNDS = {"calls": 2000 if LONG else 200, "ort": 20_000 if LONG else 2000}
LONGEST = {"calls": 64, "ort": 96}  # bytes of an input
# loops make counters and comparisons that say nothing new about shapes: edges alone, and ten times as fast
OPTIONS = ("-entropic=0", "-use_counters=0", "-print_funcs=0", "-reload=0", "-print_final_stats=1")


def build(folder, sanitizer, compilers):
    """Builds the programs with the first of the compilers that there is."""
    compiler = next((name for name in compilers if shutil.which(name)), None)
    if compiler is None or shutil.which("cmake") is None:
        pytest.skip(f"needs cmake and one of {', '.join(compilers)}")
    options = [f"-DSANITIZER={sanitizer}", f"-DCMAKE_CXX_COMPILER={compiler}"]
    for command in (
        ["cmake", "-S", str(FUZZ), "-B", str(folder), *options],
        ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1)],
    ):
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, (built.stdout + built.stderr)[-5000:]
    return folder


@pytest.fixture(scope="module")
def fuzzers(tmp_path_factory):
    compilers = ("clang++", *(f"clang++-{n}" for n in range(20, 12, -1)))
    return build(tmp_path_factory.mktemp("fuzzers"), "fuzzer", compilers)


@pytest.fixture(scope="module")
def threaded(tmp_path_factory):
    return build(tmp_path_factory.mktemp("threads"), "thread", ("g++", "clang++"))


@pytest.mark.slow
@pytest.mark.parametrize("what", RUNS)
def test_fuzzing(fuzzers, tmp_path, what):
    corpus = shutil.copytree(FUZZ / "corpus" / what, tmp_path / "corpus")
    command = [str(fuzzers / f"fuzz_{what}"), *OPTIONS, f"-max_len={LONGEST[what]}", f"-artifact_prefix={tmp_path}/"]
    environment = {**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=1:malloc_context_size=2"}
    done = subprocess.run(
        [*command, f"-runs={RUNS[what]}", str(corpus)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-5000:]
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)[1]
    covered = re.findall(r"cov: (\d+)", done.stderr)[-1]
    note(f"fuzzing {what}: {runs} executions, {covered} edges, nothing found")


@pytest.mark.slow
@pytest.mark.parametrize("what", ROUNDS)
def test_on_threads(threaded, what):
    done = subprocess.run([str(threaded / f"threads_{what}"), str(ROUNDS[what])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "WARNING" not in done.stderr
    note(f"ThreadSanitizer, {what}: {', '.join(done.stdout.splitlines())}, nothing found")
