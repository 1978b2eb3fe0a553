"""The pages in a real browser: each loads without errors and without a network, and fits a phone."""

from __future__ import annotations

import json

from runner.tools.report.sweep_page import render_sweep
from runner.tools.report.write import write_report
from tests.made_runs import make_run_on_photos
from tests.tools.report.test_write import NASTY


def test_the_report_loads_alone_and_fits_every_width(browser, tmp_path):
    classes = (*NASTY, "an_unbroken_name_of_a_class_that_is_far_longer_than_any_column_of_a_table_on_a_phone")
    run = make_run_on_photos(tmp_path / "run", tmp_path / "photos", classes)
    write_report(run, run / "report.html")
    for width in (1280, 400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get((run / "report.html").as_uri())
        root = "document.documentElement"
        content, window = browser.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]")
        assert content == window <= width, "nothing sticks out"
        pictures = browser.execute_script(
            "return [...document.images].map(image => [image.complete, image.naturalWidth, image.width])"
        )
        assert len(pictures) == 4 + 4, "curves and mistakes"
        assert all(is_loaded and pixels > 0 and 0 < shown <= width for is_loaded, pixels, shown in pictures)
    assert browser.get_log("browser") == []
    asked = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    addresses = [item["params"]["request"]["url"] for item in asked if item["method"] == "Network.requestWillBeSent"]
    assert addresses
    assert [address for address in addresses if not address.startswith(("file://", "data:"))] == []
    text = browser.find_element("tag name", "body").text
    for words in ("Curves", "Where the time went", "Confusions", "Worst mistakes", "Config", "Environment", *NASTY[:2]):
        assert words in text
    assert browser.title == "resnet18 on photos · " + "/".join(run.parts[-2:])


def test_the_page_of_a_sweep_loads_alone_and_fits_every_width(browser, folder, add_trial):
    for number, lr in enumerate((0.001, 0.01, 0.1, 1.0)):
        add_trial({"optimizer.lr": str(lr), "model": ("resnet18", NASTY[0])[number % 2]}, [0.2, 0.2 + lr / 2])
    (folder.path / "report.html").write_text(render_sweep(folder), encoding="utf-8")
    for width in (1280, 400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get((folder.path / "report.html").as_uri())
        root = "document.documentElement"
        content, window = browser.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]")
        assert content == window <= width, "nothing sticks out"
        pictures = browser.execute_script(
            "return [...document.images].map(image => [image.complete, image.naturalWidth])"
        )
        assert len(pictures) == 5, "parallel coordinates, two keys, importance, curves"
        assert all(is_loaded and pixels > 0 for is_loaded, pixels in pictures)
    assert browser.get_log("browser") == []
