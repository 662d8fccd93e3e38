"""Models of a hub: one that answers, on this machine, and one that does not."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import timm
import torch
from test_own_data import photos

import pdecnn

SCRIPT = 'import sys; sys.argv[0] = "pdecnn"; from pdecnn.cli import main; main()'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    home = tmp_path_factory.mktemp("hub")
    return pdecnn.save(timm.create_model("test_resnet", num_classes=3), home / "net")


@pytest.fixture
def hub(folder):
    """The folder as the repository me/net of a hub."""

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(False)

        def do_GET(self):
            self.answer(True)

        def answer(self, with_body):
            repository, _, name = self.path.partition("/resolve/main/")
            file = folder / name
            there = repository == "/me/net" and name and file.is_file()
            body = file.read_bytes() if there else b""
            self.send_response(200 if there else 404)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{name}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            if not there:
                self.send_header("X-Error-Code", "EntryNotFound" if repository == "/me/net" else "RepoNotFound")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(endpoint, home, *arguments):
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=home)


def profile(name, endpoint, home):
    return run(endpoint, home, "profile", name, "--input", "3,32,32", "--json")


def test_a_model_of_a_hub(hub, folder, tmp_path):
    done = profile("hf-hub:me/net", hub, tmp_path)
    assert done.returncode == 0, done.stderr
    expected = sum(p.numel() for p in pdecnn.load(folder).parameters())
    assert json.loads(done.stdout)["params"] == expected


def test_one_that_is_not_there_is_one_sentence(hub, tmp_path):
    done = profile("hf-hub:me/other", hub, tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("Error: model: cannot fetch hf-hub:me/other (")
    assert line.endswith("name timm:NAME --weights FILE.")


def test_weights_that_cannot_be_fetched_are_one_sentence(tmp_path):
    done = profile("resnet18.a1_in1k", "http://127.0.0.1:9", tmp_path)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "Error" in line)
    assert line.startswith("Error: model: cannot fetch the weights of resnet18.a1_in1k (")
    assert line.endswith("give it as --weights FILE, or --teacher-weights for a teacher.")


def test_one_is_trained_and_goes_on_without_the_hub(hub, folder, tmp_path):
    photos(tmp_path / "photos")
    recipe = {
        "model": {"name": "test_resnet"},
        "data": {"name": "folder", "batch_size": 6, "stream": {"num_classes": 3, "image_size": 32, "workers": 0}},
        "epochs": 1,
        "optimizer": {"lr": 1e-9},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    data = ("--data-dir", "photos", "--output", "run", "--threads", "1")
    done = run(hub, tmp_path, "train", "--config", "recipe.yaml", "--model", "hf-hub:me/net", *data)
    assert done.returncode == 0, done.stderr
    trained = pdecnn.load(tmp_path / "run")
    for p, q in zip(trained.parameters(), pdecnn.load(folder).parameters(), strict=True):
        torch.testing.assert_close(p, q)
    again = run("http://127.0.0.1:9", tmp_path / "photos", "train", "../run", "--resume", "--data-dir", ".")
    assert again.returncode == 0, again.stderr


def test_a_folder_of_a_registered_model_opens_in_timm(folder):
    net = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(net(x), pdecnn.load(folder)(x))
