"""The studio in a real browser, as a person uses it: every tab, wide and narrow, and once by keyboard alone.

With PDECNN_SHOTS=FOLDER each test leaves pictures of what it saw; with PDECNN_STUDIO=ADDRESS a running studio is used.
"""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
MISSING = [
    *(name for name, found in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if not found),
    *(name for name in ("gradio", "selenium") if importlib.util.find_spec(name) is None),
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)} (apt: chromium chromium-driver)"),
]

ROOT = Path(__file__).parents[2]
PATIENCE = 600
BRUSHES = ("brush", "draw", "draw button")  # what Gradio calls its tool
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader", "--disable-background-networking",
)  # fmt: skip


class Visitor:
    """A browser at the page."""

    def __init__(self, address, width=1280):
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        for flag in FLAGS:
            options.add_argument(flag)
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.width = width
        self._resize(1000)
        self.driver.get(address)
        self.until(lambda: "parameters" in self.text("condense-costs"))

    def _resize(self, height):
        size = {"width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": self.width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def find(self, css):
        return self.driver.find_element("css selector", css)

    def all(self, css):
        return self.driver.find_elements("css selector", css)

    def text(self, name):
        return self.find(f"#{name}").get_attribute("innerText")

    def html(self, name):
        return self.find(f"#{name}").get_attribute("innerHTML")

    def until(self, holds, seconds=PATIENCE):
        """Waits, and fails with what is on the page."""
        end, last = time.monotonic() + seconds, None
        while time.monotonic() < end:
            try:
                if holds():
                    return
            except Exception as error:  # what is looked for may not be there yet
                last = error
            time.sleep(0.2)
        self.shot("failed")
        pytest.fail(f"it did not happen in {seconds} s ({last}); the page says: {self.find('body').text[:2000]}")

    def click(self, css):
        element = self.find(css)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def tab(self, name):
        """Opens a tab, also one that is behind the dots of a narrow page."""
        if not any(b.text.strip() == name for b in self.all("button[role=tab]")):
            self.click(".overflow-menu > button")
            next(b for b in self.all(".overflow-dropdown button") if b.text.strip() == name).click()
        else:
            next(b for b in self.all("button[role=tab]") if b.text.strip() == name).click()
        time.sleep(0.3)

    def type(self, css, text):
        from selenium.webdriver.common.keys import Keys

        field = self.find(css)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
        field.click()
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)
        field.send_keys(Keys.ENTER)
        self.driver.execute_script("arguments[0].blur()", field)

    def complaint(self):
        """The sentence of an error, which is then closed."""
        self.until(lambda: any(toast.text.strip() for toast in self.all(".toast-body")))
        said = " ".join(toast.text for toast in self.all(".toast-body"))
        self.shot("complaint")
        self.until(lambda: [button.click() for button in self.all(".toast-close")])
        self.until(lambda: not self.all(".toast-body"))
        assert "Traceback" not in said
        assert 'File "' not in said
        return said

    def shot(self, name):
        if folder := os.environ.get("PDECNN_SHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._resize(min(6000, self.driver.execute_script("return document.body.scrollHeight") + 20))
            time.sleep(0.5)
            self.driver.save_screenshot(str(Path(folder) / f"{name}-{self.width}.png"))
            self._resize(1000)

    def fits(self):
        """Nothing makes the page wider than the window."""
        return self.driver.execute_script("return document.documentElement.scrollWidth") <= self.width

    def close(self):
        self.driver.quit()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A few images of each class as a folder of one's own."""
    from PIL import Image

    from pdecnn.training.datasets import FASHION_CLASSES, load_dataset

    data, home = load_dataset("fashion-mini"), tmp_path_factory.mktemp("images")
    for split, part in (("train", data.train), ("val", data.test)):
        for number, name in enumerate(FASHION_CLASSES):
            folder = home / split / f"{number} {name}"
            folder.mkdir(parents=True)
            for i, x in enumerate(part.x[part.y == number][:7]):
                Image.fromarray(x[0].numpy()).save(folder / f"{i}.png")
    return home


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


def test_a_job_on_own_images_is_cancelled_continued_and_downloaded(visitor, images):
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
    visitor.until(lambda: "report.html" in visitor.text("condense-files"))
    files = visitor.text("condense-files")
    assert all(name in files for name in ("student.zip", "student.onnx", "student.c", "student.h"))
    assert "accuracy, %" in visitor.text("condense-outcome")
    assert len(visitor.all("#condense-samples figure")) == 12
    assert visitor.all("#condense-curve svg .point")
    visitor.shot("job")
    assert visitor.fits()


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
    visitor.type("#inside-x input", "99")
    visitor.click("#inside-reach-button")
    assert "The map has pixels 0 to 31 across" in visitor.complaint()
    assert "its own K" in visitor.html("inside-chart") or visitor.all("#inside-chart .mark")
    visitor.shot("inside")
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
    visitor.tab("Compare")
    visitor.until(lambda: "frontier-fashion.json" in visitor.text("compare-table"))
    rows = len(visitor.all("#compare-table tbody tr"))
    visitor.type("#compare-text input, #compare-text textarea", "frontier")
    visitor.until(lambda: 0 < len(visitor.all("#compare-table tbody tr")) < rows)
    point = visitor.find("#compare-chart .point")
    visitor.driver.execute_script("arguments[0].focus()", point)
    visitor.until(lambda: visitor.find("#compare-chart .point:focus .tip").is_displayed())
    assert "ms" in visitor.find("#compare-chart .point:focus .tip").get_attribute("textContent")
    visitor.shot("compare")
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
