"""A benchmark told to a person, as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.benchmark.results import Acceptance, Benchmark, Candidate, CategoryFigures, Figures, Point, Versus
from tasks.statistics import Interval


def render(found: Benchmark) -> str:
    """See `tasks.benchmark.render`."""
    parts = [
        "# Benchmark",
        _summary(found),
        _versus(found.versus),
        *(_point(point) for point in found.points),
        _categories(found.categories),
    ]
    return "\n\n".join(part for part in [*parts, _candidates(found.candidates), _checks(found)] if part) + "\n"


def _summary(found: Benchmark) -> str:
    rows = [
        [
            str(point.concurrency),
            str(point.setting),
            f"{point.plain.output_tok_s:.1f}",
            f"{point.speculative.output_tok_s:.1f}",
            _interval(point.speedup),
            _interval(point.timing),
            _interval(point.noise),
            f"{point.acceptance.accept_length:.3f}",
            f"{point.predicted_accept_length:.3f}" if point.predicted_accept_length else "",
        ]
        for point in found.points
    ]
    head = ["concurrency", "best setting", "plain tok/s", "speculative tok/s", "speed-up", "timing alone", "plain against itself"]
    stops = found.stops_paying
    paying = (
        "Speculation is faster at every measured concurrency." if stops is None else f"From concurrency {stops} on it is not shown to pay."
    )
    return f"{_table([*head, 'acceptance', 'predicted'], rows)}\n\n{paying} Failed requests: {found.failures}."


def _versus(versus: Versus | None) -> str:
    if versus is None:
        return ""
    how = "side by side" if versus.side_by_side else "in turns, each beside the plain server"
    rows = [
        [
            f"version {versus.version}, {versus.setting}",
            f"{versus.figures.output_tok_s:.1f}",
            f"{versus.candidate_tok_s:.1f}",
            _interval(versus.over),
            f"{versus.acceptance.accept_length:.3f}",
        ]
    ]
    head = ["champion", "tok/s", "candidate tok/s", "candidate / champion", "champion's acceptance"]
    return f"## Against the champion, {how}\n\n{_table(head, rows)}"


def _point(point: Point) -> str:
    rows = [_server("plain", point.plain), _server("speculative", point.speculative)]
    head = ["", "TPOT", "TPOT p50", "p90", "p99", "TTFT mean", "p50", "p90", "p99", "end to end p50", "p90", "p99", "requests/s"]
    title = f"## Concurrency {point.concurrency}, {point.setting} (milliseconds)"
    return f"{title}\n\n{_table(head, rows)}\n\nRight drafts per round: {_histogram(point.acceptance)}"


def _server(name: str, figures: Figures) -> list[str]:
    by_request, first, whole = figures.tpot_by_request, figures.ttft, figures.end_to_end
    seconds = [figures.tpot, by_request.p50, by_request.p90, by_request.p99, first.mean, first.p50, first.p90, first.p99]
    return [name, *(f"{1000 * s:.1f}" for s in [*seconds, whole.p50, whole.p90, whole.p99]), f"{figures.requests_s:.3f}"]


def _histogram(acceptance: Acceptance) -> str:
    rounds = max(1, acceptance.verify_rounds)
    shares = [f"{right}: {count} ({count / rounds:.0%})" for right, count in enumerate(acceptance.histogram)]
    return ", ".join(shares) + f"; {acceptance.right_drafts} in {acceptance.verify_rounds} rounds"


def _categories(categories: dict[str, CategoryFigures]) -> str:
    if len(categories) < 2:
        return ""
    rows = [
        [
            name,
            str(found.prompts),
            f"{1000 * found.baseline_tpot:.1f}",
            f"{1000 * found.spec_tpot:.1f}",
            _interval(found.speedup),
            f"{found.acceptance.accept_length:.3f}",
            _histogram(found.acceptance),
        ]
        for name, found in categories.items()
    ]
    head = ["category", "prompts", "plain TPOT, ms", "speculative", "speed-up", "acceptance", "right drafts per round"]
    return f"## By category\n\n{_table(head, rows)}"


def _candidates(candidates: Sequence[Candidate]) -> str:
    """Predicted beside measured: by the cost model before the start, and over the exploring pairs."""
    rows = [
        [
            str(candidate.setting),
            str(explored.concurrency),
            f"{candidate.predicted_accept_length:.3f}",
            _interval(explored.predicted_speedup),
            _interval(explored.round_cost) if explored.round_cost else "",
            f"{candidate.predicted_accept_length / max(1.0, explored.round_cost.value):.3f}" if explored.round_cost else "",
            _interval(explored.measured_speedup) if explored.measured_speedup else f"not started: {candidate.ruled_out}",
        ]
        for candidate in candidates
        for explored in candidate.explored
    ]
    head = ["setting", "concurrency", "predicted acceptance", "predicted speed-up", "cost of a round", "reached", "measured speed-up"]
    return f"## Settings tried\n\n{_table(head, rows)}" if rows else ""


def _checks(found: Benchmark) -> str:
    return "## Checks\n\n" + "\n".join(f"- **{check.verdict}** {check.name}: {check.message}" for check in found.checks)


def _interval(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
