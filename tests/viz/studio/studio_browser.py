"""A visitor of the studio: Chromium, and what a person does with it.

With PDECNN_SHOTS=FOLDER each test leaves pictures of what it saw.
"""

import importlib.util
import os
import shutil
import time
from pathlib import Path

import pytest

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
MISSING = [
    *(name for name, found in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if not found),
    *(name for name in ("gradio", "selenium") if importlib.util.find_spec(name) is None),
]
PATIENCE = 600
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
        """Clicks what is there, once it can be clicked: pages are drawn bit by bit."""

        def clicked():
            element = self.find(css)
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            element.click()
            return True

        self.until(clicked)

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
