"""The history page as Chromium draws it: everything is there, can be read, and needs no network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html import unescape
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from flows.history_figure import colour_of
from flows.history_page import page
from tasks.ledger.history import PastRun

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: Debian's package is `chromium`")
WIDTH = 1400
# Verdict, kind, stage, and how far such a run got.
ENDS = [
    ("PASS", "", "promote", "bench"),
    ("WARN", "invalid-measurement", "benchmark", "bench"),
    ("FAIL", "not-faster", "promote", "bench"),
    ("FAIL", "layer-boundaries", "verify", "verify"),
    ("INVALID", "invalid-measurement", "benchmark", "bench"),
    ("ERROR", "bad-input", "target", ""),
]

Box = Sequence[float]


def past(i: int, target: str = "smollm2-135m-instruct") -> PastRun:
    verdict, kind, stage, reached = ENDS[i % len(ENDS)]
    accuracy = 0.62 + i % 11 / 100
    alone = {"train.accuracy_step0": accuracy, "verify.accuracy_step0": accuracy, "verify.accept_length": 1.3 + accuracy}
    speedup = 1.4 - 0.3 * (kind == "not-faster") + i % 7 / 20
    bench = {
        "bench.accept_length": 1.29 + accuracy + i % 5 / 200,
        "bench.baseline_tok_s": 21.0 + i % 3,
        "bench.spec_tok_s": 21 * speedup,
        "bench.speedup": speedup,
        "bench.speedup_low": speedup - 0.14,
        "bench.speedup_high": speedup + 0.15,
    }
    began = datetime(2026, 1, 1, 9, tzinfo=UTC) + timedelta(hours=7 * i)
    return PastRun(
        id=str(i),
        name=f"{began:%Y-%m-%d %H:%M:%S} {verdict}",
        target=target,
        began=began,
        verdict=verdict,
        kind=kind,
        stage=stage,
        host="here",
        target_sha256="a",
        metrics={**(alone if reached else {}), **(bench if reached == "bench" else {})},
        champion=i == 0,
    )


def browse(file: Path, *options: str) -> str:
    """Headless, and with no name that resolves. Root has no sandbox."""
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={file.parent / 'profile'}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000", f"--window-size={WIDTH},1200", *options]
    return subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=180, check=True).stdout


def drawn(runs: Sequence[PastRun], folder: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("drawn.js").read_text(encoding="utf-8")
    file = folder / "history.html"
    file.write_text(page(runs).replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    found = re.search(r'<pre id="drawn">(.*?)</pre>', browse(file, "--dump-dom"), re.DOTALL)
    assert found, "the page's script did not run to its end"
    result: dict[str, Any] = json.loads(unescape(found.group(1)))
    return result


PAGES = {
    "1 run": [past(0)],
    "200 runs, and two more targets": [
        past(i, target)
        for target, runs in (("llama-3.1-8b-instruct", 2), ("qwen3-8b", 30), ("smollm2-135m-instruct", 200))
        for i in range(runs)
    ],
}


@pytest.mark.parametrize("name", PAGES)
def test_every_run_is_drawn_and_can_be_read(name: str, tmp_path: Path) -> None:
    runs = PAGES[name]
    found = drawn(runs, tmp_path)
    assert found["loaded"] == [] and found["wider"] <= 0
    targets = sorted({run.target for run in runs})
    for graph, target in zip(found["graphs"], targets, strict=True):
        of_target = [run for run in runs if run.target == target]
        says_what_it_shows(graph, of_target)
        shows_every_run(graph, of_target)
        answers_the_mouse(graph, of_target)
        nothing_overlaps_or_is_cut(graph)


def says_what_it_shows(graph: dict[str, Any], runs: Sequence[PastRun]) -> None:
    assert set(graph["titles"]) == {"time (UTC)", "tok/s", "accuracy", "plain time / speculative time", "predicted", "served"}
    assert len(graph["headings"]) == 5
    lines = ["plain server", "speculative server", "accuracy in training", "standalone accuracy"]
    verdicts = [verdict for verdict in ("PASS", "WARN", "INVALID", "FAIL", "ERROR") if any(run.verdict == verdict for run in runs)]
    assert graph["legend"] == [*lines, *verdicts, "champion"]
    shown = {word["text"] for word in graph["words"]}
    assert {f"{run.verdict} {run.kind}".strip() for run in runs} <= shown


def shows_every_run(graph: dict[str, Any], runs: Sequence[PastRun]) -> None:
    """Each run once by its verdict, and once more in each panel whose figures it has; each champion under a star."""
    reached = Counter(stage for run in runs for stage in ("verify", "bench") if f"{stage}.accept_length" in run.metrics)
    points: Counter[str] = Counter()
    for trace in graph["traces"]:
        points[trace["name"]] += len(trace["points"])
    assert points["plain server"] == points["speculative server"] == reached["bench"]
    assert points["accuracy in training"] == points["standalone accuracy"] == reached["verify"]
    assert points["champion"] == 5 * sum(run.champion for run in runs)
    assert sum(trace["intervals"] for trace in graph["traces"]) == reached["bench"]
    for verdict in {run.verdict for run in runs}:
        measured = sum(run.verdict == verdict and "bench.speedup" in run.metrics for run in runs)
        assert points[verdict] == sum(run.verdict == verdict for run in runs) + 2 * measured
        fills = {point["fill"] for trace in graph["traces"] if trace["name"] == verdict for point in trace["points"]}
        assert fills == {rgb(colour_of(verdict))}


def answers_the_mouse(graph: dict[str, Any], runs: Sequence[PastRun]) -> None:
    """The last point of each trace tells its run, with its kind, its stage and its figures."""
    known = {run.name: run for run in runs}
    for trace, hovers in zip(graph["traces"], graph["hovers"], strict=True):
        if trace["name"] == "champion":  # lets the mouse through
            continue
        (hover,) = hovers
        run = next(known[name] for name in sorted(known, key=len, reverse=True) if hover["text"].startswith(name))
        assert f"{run.verdict} {run.kind}".strip() + f" in {run.stage}" in hover["text"]
        assert ("champion" in hover["text"]) == run.champion
        assert within(hover["box"], graph["box"]), f"cut: {hover}"


def nothing_overlaps_or_is_cut(graph: dict[str, Any]) -> None:
    words, panels = graph["words"], {panel["subplot"]: panel["box"] for panel in graph["panels"]}
    assert len(panels) == 5
    assert [word for word in words if not within(word["box"], graph["box"])] == []
    assert [(a["text"], b["text"]) for a, b in combinations(words, 2) if overlap(a["box"], b["box"])] == []
    assert [(word["text"], name) for word in words for name, panel in panels.items() if overlap(word["box"], panel)] == []
    points = [(point["box"], trace["subplot"], trace["name"]) for trace in graph["traces"] for point in trace["points"]]
    assert [(name, box) for box, subplot, name in points if not within(box, panels[subplot])] == []


def within(inner: Box, outer: Box, slack: float = 1.0) -> bool:
    left, top, right, bottom = inner
    return left >= outer[0] - slack and top >= outer[1] - slack and right <= outer[2] + slack and bottom <= outer[3] + slack


def overlap(one: Box, other: Box, slack: float = 1.0) -> bool:
    """By more than `slack` pixels both ways."""
    return min(one[2], other[2]) - max(one[0], other[0]) > slack and min(one[3], other[3]) - max(one[1], other[1]) > slack


def rgb(colour: str) -> str:
    """As a browser says it."""
    return "rgb({}, {}, {})".format(*bytes.fromhex(colour.removeprefix("#")))


def test_a_picture_has_the_colour_of_every_verdict(tmp_path: Path) -> None:
    """What is in the DOM is also painted."""
    from PIL import Image

    file = tmp_path / "history.html"
    runs = [past(i) for i in range(200)]
    file.write_text(page(runs), encoding="utf-8")
    browse(file, f"--screenshot={tmp_path / 'page.png'}")
    with Image.open(tmp_path / "page.png") as picture:
        colours = picture.convert("RGB").getcolors(maxcolors=1 << 24)
    painted = {colour for _, colour in colours or []}
    assert {colour_of(run.verdict) for run in runs} <= {f"#{r:02x}{g:02x}{b:02x}" for r, g, b in painted}
