"""The studio in a real browser, as a person uses it: every tab, wide and narrow, and once by keyboard alone.

With PDECNN_STUDIO=ADDRESS a running studio is used.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest
from studio_browser import MISSING, PATIENCE, Visitor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)} (apt: chromium chromium-driver)"),
]

ROOT = Path(__file__).parents[3]
FILES = {"student.zip", "student.onnx", "student.c", "student.h", "report.html"}
BRUSHES = ("brush", "draw", "draw button")  # what Gradio calls its tool


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    if running := os.environ.get("PDECNN_STUDIO"):
        yield running
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path_factory.mktemp("studio")
    command = [sys.executable, "-m", "pdecnn", "studio", "--no-browser", "--port", str(port)]
    for folder in ("results", "benchmarks/results"):
        command += ["--results", str(ROOT / folder)]
    log = home / "log"
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=home, stdout=out, stderr=subprocess.STDOUT)
    end = time.monotonic() + PATIENCE
    while "is at" not in log.read_text() and server.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
    assert f"http://127.0.0.1:{port}" in log.read_text()
    yield f"http://127.0.0.1:{port}/"
    server.send_signal(signal.SIGINT)
    server.wait(60)
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture(scope="module", params=[1280, 390])
def visitor(request, address):
    found = Visitor(address, request.param)
    yield found
    found.close()


def test_condense_shows_a_strip_and_what_each_edit_costs(visitor):
    visitor.until(lambda: "being measured" not in visitor.text("condense-costs"))
    before = visitor.text("condense-costs")
    assert "46K" in before
    assert len(visitor.all("#condense-strip .block.kept")) == 6
    assert len(visitor.all("#condense-strip .block.gone")) == 9
    visitor.shot("condense")
    visitor.type(".run-row input[type=number]", "1")
    visitor.until(lambda: len(visitor.all("#condense-strip .block.gone")) == 10)
    assert visitor.text("condense-costs") != before
    visitor.until(lambda: "being measured" not in visitor.text("condense-costs"))
    assert visitor.fits()


def test_what_was_left_alone_says_why_and_wrong_names_are_told(visitor):
    visitor.type("#condense-name input", "torchvision:mobilenet_v3_small")
    visitor.click("#condense-open")
    visitor.until(lambda: visitor.all("#condense-strip .block.alone"))
    alone = visitor.find("#condense-strip .block.alone")
    assert "Left alone: its convolutions are all 1x1" in alone.get_attribute("data-tip")
    visitor.driver.execute_script("arguments[0].focus()", alone)
    shown = "return getComputedStyle(arguments[0], '::after').content"
    assert "Left alone" in visitor.driver.execute_script(shown, alone)
    visitor.shot("mobilenet")
    visitor.type("#condense-name input", "resnet19")
    visitor.click("#condense-open")
    assert "no model named 'resnet19'" in visitor.complaint()
    visitor.type("#condense-name input", "fashion_resnet32.fashion_mini")
    visitor.click("#condense-open")
    visitor.until(lambda: len(visitor.all("#condense-strip .block.gone")) == 9)


def test_a_job_on_own_images_is_cancelled_continued_and_downloaded(visitor, images, tmp_path):
    visitor.type("#condense-images input, #condense-images textarea", "/no/such/folder")
    visitor.click("#condense-start")
    assert "no folder '/no/such/folder'" in visitor.complaint()
    visitor.type("#condense-images input, #condense-images textarea", str(images))
    visitor.type("#condense-epochs input[type=number]", "2")
    visitor.click("#condense-start")
    visitor.until(lambda: visitor.find("#condense-cancel").is_enabled())
    visitor.click("#condense-cancel")
    visitor.until(lambda: "cancelled" in visitor.text("condense-progress"))
    visitor.until(lambda: visitor.find("#condense-start").text == "Continue")
    visitor.click("#condense-start")
    visitor.until(lambda: "finished" in visitor.text("condense-progress"))
    visitor.until(lambda: len(visitor.all("#condense-files a")) >= len(FILES))
    assert not visitor.find("#condense-cancel").is_enabled()
    assert "accuracy, %" in visitor.text("condense-outcome")
    assert len(visitor.all("#condense-samples figure")) == 12
    assert visitor.all("#condense-curve svg .point")
    check_files({link.get_attribute("href") for link in visitor.all("#condense-files a")}, tmp_path)
    visitor.shot("job")
    assert visitor.fits()


def check_files(links, home):
    """Every file is fetched and used: the checkpoint and the ONNX file give the same logits."""
    import onnxruntime
    import torch

    import pdecnn

    for link in links:
        urllib.request.urlretrieve(link, home / link.rpartition("/")[2])
    assert {file.name for file in home.iterdir()} == FILES
    with zipfile.ZipFile(home / "student.zip") as packed:
        packed.extractall(home)
    x = torch.rand(1, 1, 28, 28)
    with torch.no_grad():
        expected = pdecnn.load(home / "student")(x).numpy()
    session = onnxruntime.InferenceSession(home / "student.onnx")
    np.testing.assert_allclose(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0], expected, atol=1e-4)
    for name in ("student.c", "student.h"):
        assert "int student_run(void *arena, const float *in, float *out)" in (home / name).read_text()
    report = (home / "report.html").read_text()
    assert report.startswith("<!doctype html>")
    assert "accuracy" in report


def test_look_inside_by_picking_playing_and_clicking(visitor):
    visitor.tab("Look inside")
    visitor.until(lambda: "It says cat" in visitor.text("inside-answer"))
    assert len(visitor.all("#inside-fields figure")) == 4
    visitor.click(
        "#inside-gallery button.thumbnail-item:nth-of-type(2), #inside-gallery .grid-container > :nth-child(2)"
    )
    visitor.until(lambda: "It says ship" in visitor.text("inside-answer"))
    before = visitor.html("inside-states")
    visitor.click("#inside-play")
    visitor.until(lambda: visitor.html("inside-states") != before)
    visitor.click("#inside-play")
    visitor.until(lambda: visitor.find("#inside-play").text == "Play")
    visitor.click("#inside-plane img")
    visitor.until(lambda: len(visitor.all("#inside-reach figure")) == 2)
    assert "of 1024 pixels of the image" in visitor.text("inside-reach")
    x, y = (visitor.find(f"#inside-{axis} input").get_attribute("value") for axis in "xy")
    assert visitor.text("inside-reach").startswith(f"pixel ({x}, {y}) depends on")
    assert "its own K" in visitor.html("inside-chart")
    visitor.shot("inside")
    visitor.type("#inside-x input", "99")
    visitor.click("#inside-reach-button")
    visitor.until(lambda: f"0 to 31 across and 0 to 31 down, got 99, {y}" in visitor.text("inside-reach"))
    assert not visitor.all("#inside-reach figure")
    visitor.type("#inside-x input", "3")
    visitor.until(lambda: visitor.text("inside-reach").startswith(f"pixel (3, {y}) depends on"))
    assert visitor.fits()


def test_look_inside_a_drawing_and_an_upload(visitor, images, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains

    visitor.tab("Look inside")
    visitor.type("#inside-name input", "mnist_toy_global.mnist")
    visitor.click("#inside-open")
    visitor.until(lambda: "28x28" in visitor.find("#inside-layer input").get_attribute("value"))
    visitor.tab("Draw")
    visitor.click("#inside-draw")
    assert "The pad is empty" in visitor.complaint()
    before = visitor.text("inside-answer") + visitor.html("inside-answer")
    tools = [b for b in visitor.all("#inside-pad button") if (b.get_attribute("aria-label") or "").lower() in BRUSHES]
    tools[0].click()
    time.sleep(1)
    pad = visitor.find("#inside-pad canvas")
    visitor.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", pad)
    stroke = ActionChains(visitor.driver).move_to_element_with_offset(pad, 0, -70).click_and_hold()
    for _ in range(14):
        stroke = stroke.move_by_offset(0, 10)
    stroke.release().perform()
    time.sleep(1)
    visitor.click("#inside-draw")
    visitor.until(lambda: visitor.text("inside-answer") + visitor.html("inside-answer") != before)
    visitor.until(lambda: "It says 1" in visitor.text("inside-answer"))
    visitor.shot("drawn")
    visitor.tab("Upload")
    (tmp_path / "not.png").write_text("this is no image")
    visitor.find("#inside-upload input[type=file]").send_keys(str(tmp_path / "not.png"))
    assert "not.png is not an image that can be read" in visitor.complaint()
    visitor.click("#inside-upload button[aria-label='Clear'], #inside-upload [aria-label='Remove this file']")
    picture = next((images / "val" / "1 trouser").iterdir())
    before = visitor.html("inside-answer")
    visitor.until(lambda: visitor.all("#inside-upload input[type=file]"))
    visitor.find("#inside-upload input[type=file]").send_keys(str(picture))
    visitor.until(lambda: visitor.html("inside-answer") != before)
    visitor.shot("uploaded")


def test_symmetry_turns_weights_and_logits_stand_still(visitor):
    visitor.tab("Symmetry")
    visitor.until(lambda: "logits stand still" in visitor.text("symmetry-says"))
    before = visitor.html("symmetry-weights")
    visitor.type("#symmetry-t input[type=number]", "0.8")
    visitor.until(lambda: visitor.html("symmetry-weights") != before)
    assert "logits stand still" in visitor.text("symmetry-says")
    visitor.shot("symmetry")
    visitor.click("#symmetry-break input")
    visitor.until(lambda: "logits moved" in visitor.text("symmetry-says"))
    visitor.click("#symmetry-break input")
    visitor.until(lambda: "logits stand still" in visitor.text("symmetry-says"))
    visitor.type("#symmetry-name input", "cifar_resnet32")
    visitor.click("#symmetry-open")
    assert "only the streams of pdecnn.models.HyperbolicNet" in visitor.complaint()
    assert visitor.fits()


def test_compare_filters_and_tells_each_run(visitor):
    from selenium.webdriver.common.action_chains import ActionChains

    visitor.tab("Compare")
    visitor.until(lambda: "frontier-fashion.json" in visitor.text("compare-table"))
    rows = len(visitor.all("#compare-table tbody tr"))
    visitor.type("#compare-text input, #compare-text textarea", "frontier")
    visitor.until(lambda: 0 < len(visitor.all("#compare-table tbody tr")) < rows)
    points = visitor.all("#compare-chart .point")
    visitor.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", points[0])
    ActionChains(visitor.driver).move_to_element(points[0].find_element("css selector", "circle")).perform()
    visitor.until(lambda: visitor.find("#compare-chart .point:hover .tip").is_displayed())
    visitor.shot("hover")
    visitor.driver.execute_script("arguments[0].focus()", points[1])
    assert [tip.is_displayed() for tip in visitor.all("#compare-chart .point .tip")].count(
        True
    ) == 1  # that of the pointer
    ActionChains(visitor.driver).move_to_element(visitor.find("#compare-text")).perform()
    visitor.until(lambda: visitor.find("#compare-chart .point:focus .tip").is_displayed())
    tip = visitor.find("#compare-chart .point:focus .tip")
    assert "ms" in tip.get_attribute("textContent")
    assert visitor.driver.execute_script("return arguments[0].getBoundingClientRect().right", tip) < visitor.width
    visitor.shot("compare")
    assert visitor.fits()


def test_compare_times_the_rest_here_and_keeps_the_filters(visitor):
    visitor.tab("Compare")
    visitor.until(
        lambda: "mnist-toy-conv.json" in visitor.text("compare-table") or visitor.all("#compare-chart .point")
    )
    visitor.click("#compare-data label:first-of-type input")
    visitor.type("#compare-text input, #compare-text textarea", "mnist-toy-")
    visitor.until(lambda: len(visitor.all("#compare-table tbody tr")) == 3)
    assert "nothing to draw yet" in visitor.text("compare-chart")
    visitor.click("#compare-measure")
    visitor.until(lambda: "Timed here: " in visitor.text("compare-about"))
    visitor.until(lambda: len(visitor.all("#compare-chart .point")) == 3)
    assert len(visitor.all("#compare-table tbody tr")) == 3
    assert "524" in visitor.text("compare-table")
    kept = [box.is_selected() for box in visitor.all("#compare-data input")]
    assert kept == [False] + [True] * (len(kept) - 1)
    visitor.shot("timed")
    assert visitor.fits()


def test_by_keyboard_alone(address):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    visitor = Visitor(address)
    try:

        def press(key, times=1):
            for _ in range(times):
                ActionChains(visitor.driver).send_keys(key).perform()

        def go_to(condition, most=80):
            for _ in range(most):
                if visitor.driver.execute_script(f"let e = document.activeElement; return {condition}"):
                    return
                press(Keys.TAB)
            pytest.fail(f"no way by Tab to {condition}")

        go_to("e.role == 'tab' && e.textContent.trim() == 'Symmetry'")
        press(Keys.ENTER)
        visitor.until(lambda: "logits stand still" in visitor.text("symmetry-says"))
        before = visitor.text("symmetry-says")
        go_to("e.type == 'range' && e.closest('#symmetry-t') != null")
        press(Keys.ARROW_RIGHT, 10)
        visitor.until(lambda: visitor.text("symmetry-says") != before)
        assert "logits stand still" in visitor.text("symmetry-says")
        go_to("e.type == 'checkbox' && e.closest('#symmetry-break') != null")
        press(Keys.SPACE)
        visitor.until(lambda: "logits moved" in visitor.text("symmetry-says"))
        visitor.shot("keyboard")
    finally:
        visitor.close()


def test_two_visitors_share_nothing_and_nothing_leaves_the_machine(address):
    first, second = Visitor(address), Visitor(address)
    try:
        second.until(lambda: len(second.all("#condense-strip .block.gone")) == 9)
        first.until(lambda: first.all(".run-row input[type=number]"))
        first.type(".run-row input[type=number]", "1")
        first.until(lambda: len(first.all("#condense-strip .block.gone")) == 10)
        second.until(lambda: second.all(".run-row input[type=number]"))
        second.type(".run-row:last-of-type input[type=number]", "3")
        second.until(lambda: len(second.all("#condense-strip .block.gone")) != 9)
        assert len(second.all("#condense-strip .block.gone")) == 8
        assert len(first.all("#condense-strip .block.gone")) == 10
        for name in ("Look inside", "Symmetry", "Compare"):
            first.tab(name)
        sent = [json.loads(entry["message"])["message"] for entry in first.driver.get_log("performance")]
        asked = {m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"}
        assert len(asked) > 10
        assert all(url.startswith((address, "data:", "blob:")) for url in asked), asked
        assert [e for e in first.driver.get_log("browser") if e["level"] == "SEVERE"] == []
    finally:
        first.close()
        second.close()
