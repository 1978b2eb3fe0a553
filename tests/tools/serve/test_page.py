"""The page in a real browser: an image is chosen, scored and shown, at every width, without a network."""

from __future__ import annotations

import json

from tests.conftest import AWKWARD_CLASSES


def test_an_image_is_scored_on_the_page(browser, served, trained, tmp_path):
    from selenium.webdriver.support.ui import WebDriverWait

    image = next((trained.parents[2] / "photos" / "val").rglob("*.png"))
    expected = served.score(image.read_bytes()).json
    (tmp_path / "bad.png").write_bytes(b"<svg onload=alert(1)>")

    def find(name: str):
        return browser.find_element("id", name)

    for width in (1280, 400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(f"http://127.0.0.1:{served.port}/")
        find("file").send_keys(str(image))
        WebDriverWait(browser, 30).until(lambda _: find("answer").is_displayed())
        assert find("label").text == expected["label"]
        assert {name for name in AWKWARD_CLASSES if name in find("shares").text} == set(AWKWARD_CLASSES)
        assert f"{100 * max(expected['probabilities'].values()):.2f} %" in find("shares").text
        assert "Model birds, version" in find("model").text
        WebDriverWait(browser, 30).until(lambda _: find("shown").get_property("naturalWidth") > 0)
        content, window = browser.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert content == window <= width, "nothing sticks out"
    errors = browser.get_log("browser")
    assert errors == []
    find("file").send_keys(str(tmp_path / "bad.png"))
    WebDriverWait(browser, 30).until(lambda _: find("error").is_displayed())
    assert "this is no image" in find("error").text
    assert not find("answer").is_displayed()
    asked = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    addresses = [item["params"]["request"]["url"] for item in asked if item["method"] == "Network.requestWillBeSent"]
    own = (f"http://127.0.0.1:{served.port}/", "blob:", "data:")
    assert [address for address in addresses if not address.startswith(own)] == []
    browser.execute_script(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.evil = 1'}))"
    )
    assert browser.execute_script("return window.evil") is None, "the policy runs no other script"
