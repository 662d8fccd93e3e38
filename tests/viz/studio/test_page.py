"""Nets that visitors name, who can reach the page, and the command."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from pdecnn.cli import app
from pdecnn.viz.studio import nets, serving


def test_a_net_knows_its_input_its_classes_and_its_images():
    net = nets.open_net("mnist_toy_global.mnist")
    assert net.wanted.shape == (1, 28, 28)
    assert (net.label(3), net.samples) == ("3", "mnist")
    assert nets.pick(net, 0).size == (28, 28)
    assert len(nets.gallery(net)) == nets.SAMPLES
    with pytest.raises(ValueError, match="There are images 0 to 199"):
        nets.pick(net, 200)
    assert nets.open_net("cifar_resnet32", "3,16,16").wanted.shape == (3, 16, 16)
    assert nets.open_net("cifar_resnet32").label(3) == "class 3"  # random weights know no cats


@pytest.mark.parametrize(
    "name, size, says",
    [
        ("", "", "Name a model"),
        ("resnet19", "", "no model named 'resnet19'"),
        ("cifar_resnet32", "3,32", "three numbers C,H,W"),
        ("cifar_resnet32", "3,32,99999", "of at most 1024"),
        ("no_such_module:make", "", "cannot import"),
    ],
)
def test_a_wrong_name_gives_a_sentence(name, size, says):
    with pytest.raises(ValueError, match=says):
        nets.open_net(name, size)


def test_a_page_that_others_reach_runs_no_code_and_reads_no_folder(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    for name in ("os:getcwd", "hf-hub:timm/resnet18"):
        with pytest.raises(ValueError, match="names of timm and torchvision only"):
            nets.open_net(name, local=False)
    with pytest.raises(ValueError, match="folders below its own only"):
        nets.open_net(str(tmp_path), local=False)
    assert nets.open_net("mnist_toy_conv", local=False).wanted.shape == (1, 28, 28)


@pytest.mark.parametrize(
    "given, local",
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"share": True}, False),
        ({"host": "pc"}, False),
    ],
)
def test_who_can_reach_the_page(given, local):
    assert serving.Options(**given).local is local


def test_the_help_names_every_option_without_importing_torch_or_gradio():
    result = CliRunner().invoke(app, ["studio", "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == 0
    for option in ("--host", "--port", "--share", "--no-browser", "--results", "--data"):
        assert option in result.output
    code = "import sys, pdecnn.cli.studio; print({'torch', 'gradio'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    result = CliRunner().invoke(app, ["studio", "--no-browser"])
    assert result.exit_code == 1
    assert 'pip install "pdecnn[studio]"' in result.output


def test_gradio_is_told_to_send_nothing_before_it_is_imported(monkeypatch):
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    monkeypatch.setitem(sys.modules, "gradio", SimpleNamespace())
    serving.load_gradio()
    assert serving.os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"


def test_browsers_are_told_to_load_nothing_from_elsewhere():
    import asyncio

    sent = []

    async def page(scope, receive, send):
        await send({"type": "http.response.start", "headers": []})

    async def send(message):
        sent.append(message)

    asyncio.run(serving.OnlySelf(page)({"type": "http"}, None, send))
    policy = dict(sent[0]["headers"])[b"content-security-policy"].decode()
    assert policy.startswith("default-src 'self'")
    assert "http" not in policy


@pytest.mark.parametrize("asked, share, host", [((), False, "127.0.0.1"), (("--share", "--host", "::1"), True, "::1")])
def test_there_is_no_public_link_unless_it_is_asked_for(monkeypatch, asked, share, host):
    import gradio

    given = {}

    def launch(page, **options):
        given.update(options)
        raise OSError("stop here")

    monkeypatch.setattr(gradio.Blocks, "launch", launch)
    result = CliRunner().invoke(app, ["studio", *asked])
    assert result.exit_code == 1
    assert "stop here" in result.output
    assert (given["share"], given["server_name"]) == (share, host)
