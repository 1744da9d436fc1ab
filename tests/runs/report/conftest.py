"""A headless Chromium, where there is one."""

import shutil
import time

import pytest

from tests.clocks import PATIENCE

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


class Browser:
    """A Chromium with what the tests ask of it."""

    def __init__(self, driver):
        self.driver = driver

    def size(self, width, height, dark=False):
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, address, view="overview"):
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(f"{address if '://' in str(address) else f'file://{address}'}#{view}")
        self.wait("return document.documentElement.classList.contains('ready')")

    def do(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def do_async(self, script, *arguments):
        return self.driver.execute_async_script(script, *arguments)

    def wait(self, script, seconds=PATIENCE):
        """What the script gives, as soon as it is something."""
        end = time.monotonic() + seconds
        while True:
            value = self.do(script)
            if value:
                return value
            assert time.monotonic() < end, f"waited {seconds} s for: {script}"
            time.sleep(0.03)

    def becomes(self, script, expected, seconds=PATIENCE):
        """Wait until the script gives what is expected: a page draws after the event, not within it."""
        end = time.monotonic() + seconds
        while (value := self.do(script)) != expected:
            assert time.monotonic() < end, (
                f"waited {seconds} s for {expected!r}, last {value!r}, of: {script}"
            )
            time.sleep(0.03)

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def view(self, name):
        self.do("document.getElementById('tab-' + arguments[0]).click()", name)

    def text(self, selector):
        return self.do(
            "return [...document.querySelectorAll(arguments[0])].map(n => n.textContent)", selector
        )

    def complaints(self):
        """Errors and violations of the policy that the browser has reported."""
        return [
            entry["message"] for entry in self.driver.get_log("browser") if "favicon" not in entry["message"]
        ]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if not binary or not chromedriver:
        pytest.skip("no Chromium with its driver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    page = Browser(chromium)
    page.size(1400, 1000)
    return page
