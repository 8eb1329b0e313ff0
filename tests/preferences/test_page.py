"""The page on which a person compares segments, by itself and in a real browser."""

from __future__ import annotations

import io
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headless import Browser
from preference_samples import source
from typer.testing import CliRunner

from assay.cli.app import app
from assay.core.errors import ConfigError, DataError
from assay.evaluation.video import redraw
from assay.preferences.files import PreferenceSet
from assay.preferences.page import Clips, LabelPage, _handler
from assay.preferences.sample import random_source, sample

pytest.importorskip("pygame")


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with drawn clips, which tests copy."""
    path = tmp_path_factory.mktemp("pendulum")
    made = random_source("Pendulum-v1", episodes=2, seed=5, max_episode_steps=30)
    sample(path, [made], pairs=4, length=5, held_out=0)
    return path


@pytest.fixture
def found(pendulum: Path) -> Iterator[PreferenceSet]:
    yield PreferenceSet.open(pendulum)
    (pendulum / "labels.jsonl").unlink(missing_ok=True)


@pytest.fixture
def page(found: PreferenceSet) -> Iterator[LabelPage]:
    made = LabelPage(found, "ann")
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.finished.set()
    thread.join()


def ask(page: LabelPage, path: str, body: Any = None, **headers: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json", **headers}
    with urllib.request.urlopen(urllib.request.Request(page.address + path, data, kind)) as reply:
        content = reply.read()
    return json.loads(content) if reply.headers["Content-Type"] == "application/json" else content


def status(page: LabelPage, path: str, body: Any = None, **headers: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(page, path, body, **headers)
    return caught.value.code


def choices(found: PreferenceSet) -> dict[str, str]:
    return {label.pair: label.choice for label in found.labels()}


class TestClips:
    def test_a_clip_shows_the_steps_of_its_segment(self, found: PreferenceSet) -> None:
        from PIL import Image

        segment = found.pairs()["1-0"].left
        path = Clips(found).clip(segment)
        with Image.open(path) as image:
            assert image.n_frames == 6 // 2  # of 5 steps at 30 frames a second, every other one
            assert max(image.size) <= 320
        assert Clips(found).clip(segment) == path

    def test_an_episode_is_played_again_as_it_was(self, found: PreferenceSet) -> None:
        batch = found.batches[0]
        episode, seed = batch.dataset.episode(1), batch.seed(1)
        assert seed is not None
        made = redraw("Pendulum-v1", seed, episode.action[:9], first=4)
        assert len(made.frames) == 6 and made.frames[0].ndim == 3
        np.testing.assert_allclose(np.concatenate(made.obs), episode.obs[4:10], atol=1e-5)

    def test_what_cannot_be_drawn_is_refused(self, tmp_path: Path) -> None:
        sample(tmp_path, [source()], pairs=3, length=4)
        with pytest.raises(DataError, match="cannot be drawn: its seed is not known"):
            LabelPage(PreferenceSet.open(tmp_path), "ann")

    def test_an_episode_that_comes_out_differently_is_refused(
        self, found: PreferenceSet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (found.path / "clips").rename(found.path / "clips-aside")
        try:
            monkeypatch.setattr(found.batches[0], "seed", lambda episode: 12345)
            with pytest.raises(DataError, match="came out differently"):
                Clips(found).clip(found.pairs()["1-0"].left)
        finally:
            (found.path / "clips-aside").rename(found.path / "clips")


class TestRequests:
    def test_answers_are_on_the_disk_and_can_be_taken_back(
        self, page: LabelPage, found: PreferenceSet
    ) -> None:
        assert b"Which is better?" in ask(page, "")
        first = ask(page, "state")
        assert (first["pair"]["id"], first["done"], first["undo"]) == ("1-0", 0, False)
        assert ask(page, first["pair"]["left"])[:3] == b"GIF"
        after = ask(page, "answer", {"pair": "1-0", "choice": "right"})
        assert (after["pair"]["id"], after["done"], after["undo"]) == ("1-1", 1, True)
        assert choices(found) == {"1-0": "right"}
        # A key that was pressed twice answers the pair that was shown, once.
        assert ask(page, "answer", {"pair": "1-0", "choice": "left"}) == after
        assert ask(page, "undo", {})["pair"]["id"] == "1-0" and choices(found) == {}

    def test_another_site_cannot_answer(self, page: LabelPage, found: PreferenceSet) -> None:
        body = {"pair": "1-0", "choice": "left"}
        assert status(page, "state", Host="evil.example") == 403
        assert status(page, "answer", body, Origin="http://evil.example") == 403
        assert status(page, "answer", body, **{"Content-Type": "text/plain"}) == 400
        assert status(page, "answer", {"pair": "1-0"}) == 400
        assert status(page, "answer", {"pair": "1-0", "choice": "up"}) == 409
        assert status(page, "clips/../set.json") == 404 and status(page, "etc") == 404
        assert choices(found) == {}

    def test_a_browser_that_is_closed_is_no_error(self, found: PreferenceSet) -> None:
        made = LabelPage(found, "ann")

        class Closed(io.BytesIO):
            def write(self, data: Any) -> int:
                raise BrokenPipeError

        def handler(path: str) -> Any:
            one = _handler(made).__new__(_handler(made))
            one.path, one.requestline, one.request_version = path, path, "HTTP/1.1"
            one.headers = {"Host": "localhost", "Content-Type": "application/json"}
            one.rfile, one.wfile = io.BytesIO(), Closed()
            return one

        handler("/state").do_GET()
        handler("/finish").do_POST()
        assert made.finished.is_set() and made.serve() == 4

    def test_it_goes_on_where_it_was(self, found: PreferenceSet) -> None:
        found.add_labels([("1-0", "left", "ann"), ("1-1", "left", "bob")])
        made = LabelPage(found, "ann")
        made.finished.set()
        assert made.state()["pair"]["id"] == "1-1" and made.serve() == 3

    def test_a_port_that_is_taken_is_refused(self, page: LabelPage, found: PreferenceSet) -> None:
        port = int(page.address.rstrip("/").rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"port={port}: Address already in use"):
            LabelPage(found, "ann", port=port)

    def test_the_command_serves_it_until_it_is_finished(
        self, found: PreferenceSet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve = LabelPage.serve

        def answer_all(page: LabelPage) -> int:
            while (pair := page.state()["pair"]) is not None:
                page.answer(pair["id"], "left")
            page.finished.set()
            return serve(page)

        monkeypatch.setattr(LabelPage, "serve", answer_all)
        words = ["prefer", "label", str(found.path), "--page", "--annotator", "eve"]
        done = CliRunner().invoke(app, words)
        assert "Compare the clips at http://127.0.0.1:" in done.stderr
        assert "4 new answers, 0 pairs without any" in done.stdout
        assert "0 new answers" in CliRunner().invoke(app, words).stdout  # nothing is left to ask


@pytest.mark.browser
@pytest.mark.slow
def test_a_person_compares_with_the_keyboard(page: LabelPage, found: PreferenceSet) -> None:
    browser = Browser()

    def shown(pair: str) -> None:
        browser.wait(f"document.body.dataset.pair === {pair!r}")

    try:
        browser.open(page.address)
        shown("1-0")
        browser.wait(
            "[...document.images].every((one) => one.complete && one.naturalWidth > 100) && "
            "document.images.length === 2"
        )
        left, right = browser.run(
            "return [...document.images].map((one) => one.getBoundingClientRect().x)"
        )
        assert left < right  # side by side
        browser.press("left")
        shown("1-1")
        browser.press("right")
        shown("1-2")
        browser.press("z")
        shown("1-1")
        assert choices(found) == {"1-0": "left"}
        browser.press("down")
        shown("1-2")
        browser.press("c")
        shown("1-3")
        browser.click("right")
        browser.wait("!document.getElementById('over').hidden")
        assert choices(found) == {"1-0": "left", "1-1": "equal", "1-2": "unsure", "1-3": "right"}
        assert browser.run("return document.getElementById('count').textContent") == "4 of 4"
        browser.click("finish")
        browser.wait("document.getElementById('bye')")
        assert page.finished.wait(60)
    finally:
        browser.close()
