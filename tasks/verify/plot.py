"""A verification as a page of plots: accuracy per draft step, and how far each known mis-wiring is from the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.statistics import Interval
    from tasks.verify import Verification


def plot(found: Verification) -> str:
    """HTML that needs no network: plotly's own script is inside."""
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    kind = f" [{found.verdict.kind}]" if found.verdict.kind else ""
    titles = ["accuracy per draft step", _right_title(found)]
    figure: Figure = make_subplots(rows=1, cols=2, subplot_titles=titles, column_widths=[0.4, 0.6])
    for bars in _accuracy(found):
        figure.add_trace(bars, row=1, col=1)
    for bars in _differences(found):
        figure.add_trace(bars, row=1, col=2)
    figure.update_xaxes(title_text="draft step", dtick=1, row=1, col=1)
    figure.update_yaxes(range=[0, 1], row=1, col=1)
    if found.diagnosis is None or found.diagnosis.method == "logits":
        figure.update_xaxes(type="log", row=1, col=2)
    figure.update_layout(title=f"{found.verdict.verdict}{kind}", height=max(450, 120 + 18 * _bars(found)), template="plotly_white")
    html: str = figure.to_html(include_plotlyjs=True, full_html=True)
    return html


def _right_title(found: Verification) -> str:
    if found.diagnosis is None:
        return "largest logit difference per draft step"
    by_logits = found.diagnosis.method == "logits"
    return "largest logit difference per mis-wiring" if by_logits else "gain in likelihood per mis-wiring, nats per token"


def _accuracy(found: Verification) -> list[Any]:
    from plotly.graph_objects import Bar

    steps = [step.step for step in found.steps]
    groups = {
        "draft vocabulary": [step.accuracy for step in found.steps],
        "target's own token": [step.accuracy_full for step in found.steps],
    }
    return [
        Bar(x=steps, y=[share.value for share in shares], error_y=_interval(shares), name=name) for name, shares in groups.items() if steps
    ]


def _interval(shares: list[Interval]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [share.high - share.value for share in shares],
        "arrayminus": [share.value - share.low for share in shares],
    }


def _differences(found: Verification) -> list[Any]:
    """One bar per hypothesis, the best on top; without a diagnosis one per draft step."""
    from plotly.graph_objects import Bar

    if found.diagnosis is None:
        names = [f"step {step.step}" for step in found.parity or []]
        return [Bar(x=[step.max_difference for step in found.parity or []], y=names, orientation="h", name="trainer ≡ standalone")]
    tried = found.diagnosis.hypotheses[::-1]
    colours = ["crimson" if hypothesis.name in found.diagnosis.named else "lightslategrey" for hypothesis in tried]
    bars = Bar(x=[h.score for h in tried], y=[h.name for h in tried], orientation="h", name="hypotheses", marker_color=colours)
    return [bars]


def _bars(found: Verification) -> int:
    return len(found.diagnosis.hypotheses) if found.diagnosis else 0
