"""Folders and names that come from the environment."""

from pathlib import Path

from pdecnn.shared import environment


def test_the_data_folder_is_the_given_one_then_the_variable_then_data(monkeypatch):
    monkeypatch.setenv("PDECNN_DATA", "/elsewhere")
    assert environment.data_folder("mine") == Path("mine")
    assert environment.data_folder() == Path("/elsewhere")
    monkeypatch.setenv("PDECNN_DATA", "")
    assert environment.data_folder() == Path("data")


def test_the_processor_has_a_name_with_and_without_cpuinfo(monkeypatch):
    text = "processor\t: 0\nmodel name\t: Quick (TM) 9\nmodel name\t: Other\n"
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    monkeypatch.setattr(Path, "read_text", lambda path: text)
    assert environment.cpu_name() == "Quick (TM) 9"
    text = "processor\t: 0\n"
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert environment.cpu_name() == "aarch64"


def test_the_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3}, raising=False)
    assert environment.cores() == 1
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert environment.cores() == 6
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert environment.cores() == 1
