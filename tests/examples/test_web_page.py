"""The page in examples/web: small, whole, built from its sources; its nets have the bits of the host's C.

What needs clang, node or Chromium runs where they are installed.
"""

import base64
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pdecnn.deploy.c.build import Built, described
from pdecnn.training.datasets import load_sample

WEB = Path(__file__).parents[2] / "examples" / "web"
PAGE = WEB / "index.html"
needs_clang = pytest.mark.skipif(
    not (shutil.which("clang") and shutil.which("wasm-ld")), reason="no clang with wasm-ld"
)
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="no node")


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build", WEB / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(WEB))


def committed():
    """The nets in the page, and what it was made with."""
    text = PAGE.read_text(encoding="utf-8")
    nets = json.loads(re.search(r'id="nets">(.*?)</script>', text)[1])
    return text, nets, re.search(r'name="generator" content="(.*?)"', text)[1]


def node(code, *args):
    """What a module prints as JSON; it finds the scripts of the page in `page`."""
    scripts = (WEB / "page").as_uri()
    text = f'const page = "{scripts}"; import fs from "node:fs";\n{code}'
    call = ["node", "--input-type=module", "-e", text, *map(str, args)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


RUN = """
const { load } = await import(`${page}/net.js`);
const [spec, inputs, steps, out] = process.argv.slice(1);
const net = await load(JSON.parse(fs.readFileSync(spec)));
const x = new Float32Array(new Uint8Array(fs.readFileSync(inputs)).buffer);
const found = [];
for (let i = 0; i < x.length; i += net.spec.inputs)
  for (const K of JSON.parse(steps))
    for (const q of Object.values(net.run(x.subarray(i, i + net.spec.inputs), K))) found.push(Buffer.from(q.buffer));
fs.writeFileSync(out, Buffer.concat(found));
console.log(JSON.stringify(net.milliseconds(5)));
"""


def run_in_node(net, x, steps, folder):
    """The outputs of every image for every K, one after the other."""
    (folder / "net.json").write_text(json.dumps(net))
    x.tofile(folder / "x.bin")
    assert node(RUN, folder / "net.json", folder / "x.bin", json.dumps(steps), folder / "out.bin") > 0
    return np.fromfile(folder / "out.bin", np.float32).reshape(len(x), len(steps), -1)


def test_page_is_one_small_file_that_asks_for_nothing_else():
    text, nets, _ = committed()
    assert len(text.encode()) < 300_000
    assert set(nets) == {"digits", "pictures"}
    addresses = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?([^"\')>]+)', text)
    assert [a for a in addresses if not a.startswith("data:")] == []
    assert set(re.findall(r"https?://[^'\" ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|sendBeacon)\b", text)


def test_page_is_made_of_its_sources(build):
    text, nets, generator = committed()
    assert build.page(nets, generator) == text


def check_rebuilt(build, kind, folder):
    _, nets, generator = committed()
    found = json.loads(json.dumps(build.net(kind, folder)))
    if build.generator() == generator:
        assert found == nets[kind]
    assert {**found, "wasm": ""} == {**nets[kind], "wasm": ""}
    return found


def check_bits(build, kind, folder):
    net = check_rebuilt(build, kind, folder)
    source = (folder / f"{kind}.c").read_text()
    rng, steps = np.random.default_rng(0), [1, 5, 10]
    x = rng.standard_normal((3, net["inputs"])).astype(np.float32)
    x[2] *= 3
    found = run_in_node(net, x, steps, folder)
    host = Built(source, kind)
    arena, expected = np.empty(described(source)[1] // 4, np.float32), np.empty_like(found)
    for i, K in np.ndindex(found.shape[:2]):
        host.run(arena, x[i], expected[i, K], steps[K])
    assert np.isfinite(expected).all()
    assert np.array_equal(found.view(np.int32), expected.view(np.int32))
    assert not np.array_equal(expected[:, 0], expected[:, 1])  # K matters


@needs_clang
@needs_node
def test_rebuilt_digits_are_those_of_the_page_and_have_the_bits_of_the_host(build, tmp_path):
    check_bits(build, "digits", tmp_path)


@needs_clang
@needs_node
@pytest.mark.slow
def test_rebuilt_pictures_are_those_of_the_page_and_have_the_bits_of_the_host(build, tmp_path):
    check_bits(build, "pictures", tmp_path)


@needs_node
def test_states_of_the_page_are_the_trajectory_of_the_layer(build, tmp_path):
    _, nets, _ = committed()
    net = nets["digits"]
    model = build.timm.create_model("mnist_toy_global.mnist", pretrained=True).eval()
    pixels = load_sample("mnist").x[:3]
    x = (pixels / 255 - 0.1307) / 0.3081
    found = run_in_node(net, x.numpy().reshape(3, -1), [1, 2, 3, 4, 5], tmp_path)
    parts = np.split(found, np.cumsum(list(net["outputs"].values()))[:-1], axis=-1)
    logits, h0, _, _, hK = (torch.from_numpy(q) for q in parts)
    with torch.no_grad():
        z = model.stem(x)
        states = next(m for m in model.modules() if hasattr(m, "trajectory")).trajectory(z)
        expected = model(x)
    scale = states[-1].abs().max()
    torch.testing.assert_close(h0[:, 0], states[0].flatten(1), atol=1e-5 * scale, rtol=0)
    for k, state in enumerate(states[1:]):
        torch.testing.assert_close(hK[:, k], state.flatten(1), atol=1e-5 * scale, rtol=0)
    torch.testing.assert_close(logits[:, -1], expected, atol=1e-4, rtol=1e-4)


DIGIT = """
const { digit } = await import(`${page}/pixels.js`);
const [file, side] = process.argv.slice(1);
const ink = new Float32Array(new Uint8Array(fs.readFileSync(file)).buffer);
const size = side * side, found = [];
for (let i = 0; i < ink.length; i += size) {
  const made = digit(ink.subarray(i, i + size), Number(side));
  found.push(made && Array.from(made));
}
console.log(JSON.stringify(found));
"""


def digits_in_node(ink, folder):
    (folder / "ink.bin").write_bytes(ink.astype(np.float32).tobytes())
    found = node(DIGIT, folder / "ink.bin", ink.shape[-1])
    return [None if q is None else np.array(q).reshape(28, 28) for q in found]


@needs_node
def test_drawings_come_out_as_mnist_has_them(tmp_path):
    """Real digits, enlarged and put into a corner of the pad, come back as they were."""
    real = load_sample("mnist").x[:20, 0].numpy() / 255
    ink = np.zeros((len(real) + 1, 280, 280))
    for i, image in enumerate(real):
        rows, columns = (np.flatnonzero(image.max(axis) > 0.05) for axis in (1, 0))
        crop = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        large = np.kron(crop, np.ones((6, 6)))
        ink[i, 5 : 5 + large.shape[0], 150 : 150 + large.shape[1]] = large
    *found, empty = digits_in_node(ink, tmp_path)
    assert empty is None
    for image, again in zip(real, found, strict=True):
        assert np.abs(again / 255 - image).max() < 0.06  # fainter ink was left out of the box


@pytest.fixture(scope="module")
def browser():
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("no Chromium with its driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install 'pdecnn[dev]'")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,1000",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.get(PAGE.as_uri())
    wait(driver, "return document.body.dataset.ready")
    yield driver
    problems = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    driver.quit()
    assert problems == []


def wait(driver, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, 60).until(lambda d: d.execute_script(condition))


def text(driver, name):
    return driver.execute_script("return document.getElementById(arguments[0]).textContent", name)


def draw(driver, points):
    """A stroke through points of the pad, in 28ths of its side, with the mouse."""
    from selenium.webdriver.common.action_chains import ActionChains

    pad = driver.find_element("id", "pad")
    scale = pad.size["width"] / 28
    places = [((x - 14) * scale, (y - 14) * scale) for x, y in points]
    actions = ActionChains(driver, duration=20).move_to_element_with_offset(pad, *places[0]).click_and_hold()
    for place in places[1:]:
        actions.move_to_element_with_offset(pad, *place)
    actions.release().perform()


def circle():
    return [(14 + 6 * np.cos(t), 14 + 8.5 * np.sin(t)) for t in np.linspace(0, 2 * np.pi, 17)]


def test_page_reads_what_is_drawn_and_follows_the_slider(browser, tmp_path):
    browser.find_element("id", "tab-digits").click()
    for points, expected in (([(14, 5), (14, 14), (14, 23)], "1"), (circle(), "0")):
        browser.find_element("id", "clear").click()
        assert text(browser, "sure") == "nothing to read yet"
        draw(browser, points)
        assert text(browser, "best") == expected
    assert text(browser, "said").startswith("0, ")
    slider = browser.find_element("id", "steps")
    shares = {}
    for key, K in (("\ue012", 4), ("\ue014", 5), ("\ue014", 6)):  # left, right, right
        slider.send_keys(key)
        assert text(browser, "steps-value") == str(K)
        assert len(browser.find_elements("css selector", "#frames button")) == K + 1
        shares[K] = browser.execute_script("return Array.from(pdecnn.now.answer.logits)")
    assert shares[4] != shares[5] != shares[6]
    wait(browser, "return Number(document.getElementById('ms').textContent) > 0")
    x = np.array(browser.execute_script("return Array.from(pdecnn.now.input)"), np.float32)
    net = committed()[1]["digits"]
    expected = run_in_node(net, x[None], [6], tmp_path)[0, 0]
    names = list(net["outputs"])
    found = browser.execute_script(f"return {names}.flatMap((name) => Array.from(pdecnn.now.answer[name]))")
    assert np.array_equal(np.array(found, np.float32).view(np.int32), expected.view(np.int32))


def test_states_and_velocities_are_drawn(browser):
    def scene():
        return browser.execute_script("return document.getElementById('scene').toDataURL()")

    seen = {scene()}
    for name in ("see-velocity", "see-state", "see-image"):
        browser.find_element("id", name).click()
        seen.add(scene())
    assert len(seen) == 4  # without anything it is white
    for name in ("see-velocity", "see-state", "see-image"):
        browser.find_element("id", name).click()
    frames = browser.find_elements("css selector", "#frames button")
    before = scene()
    frames[0].click()
    assert scene() != before
    assert "after 0 of" in text(browser, "step-time")


def test_keys_draw_too(browser):
    browser.find_element("id", "tab-digits").click()
    browser.find_element("id", "clear").click()
    browser.find_element("id", "pad").send_keys(" ", *["\ue015"] * 14, " ")  # down
    assert text(browser, "best") == "1"


def test_picture_is_read_from_a_file(browser, tmp_path):
    from PIL import Image

    sample = load_sample("cifar10")
    ship = sample.x[sample.y == 8][0]
    large = ship.repeat_interleave(16, 1).repeat_interleave(16, 2)
    Image.fromarray(large.permute(1, 2, 0).numpy()).save(tmp_path / "ship.png")
    browser.find_element("id", "file").send_keys(str(tmp_path / "ship.png"))
    wait(browser, "return document.getElementById('best').textContent === 'ship'")
    pixels = browser.execute_script("return Array.from(pdecnn.now.pixels)")
    assert pixels == ship.flatten().tolist()
    (tmp_path / "no.png").write_text("no picture")
    browser.find_element("id", "file").send_keys(str(tmp_path / "no.png"))
    wait(browser, "return document.getElementById('trouble').textContent.includes('no picture')")
    assert base64.b64decode(committed()[1]["pictures"]["wasm"])[:4] == b"\0asm"


@pytest.mark.parametrize("width", [1280, 390])
def test_page_fits_the_screen(browser, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for kind in ("digits", "pictures"):
        browser.find_element("id", f"tab-{kind}").click()
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        outside = browser.execute_script(
            "return [...document.querySelectorAll('main *')].filter((e) => {"
            "const [r, c] = [e, e.closest('.card')].map((q) => q.getBoundingClientRect());"
            "return r.width > 1 && r.right > c.right + 1}).map((e) => e.id || e.className)"
        )
        assert outside == []
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
