"""What a server has counted since it started, read from its Prometheus page.

SGLang's gauge `spec_accept_length` tells only of the last logging interval, and is empty between two bursts; its
counters miss nothing (sglang 0.5.23, srt/observability/metrics_collector.py).
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tasks.verdict import BadInput, MachineTrouble

_NAMES = {
    "requests": "sglang:num_requests_total",
    "generated": "sglang:generation_tokens_total",
    "rounds": "sglang:spec_verify_calls_total",
}
_SECONDS = 10


class Counters(BaseModel):
    """Sums over the server's workers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: float = Field(ge=0, description="Requests that have ended.")
    generated: float = Field(ge=0, description="Tokens generated, each request's first one (of its prefill) included.")
    rounds: float = Field(ge=0, description="Verify rounds.")

    def since(self, earlier: Counters) -> Counters:
        """What was counted after `earlier`; everything, if the server was started anew meanwhile and counts from zero again."""
        if any(now < before for now, before in zip(self.values(), earlier.values(), strict=True)):
            return self
        return Counters(**{name: getattr(self, name) - getattr(earlier, name) for name in _NAMES})

    def values(self) -> tuple[float, ...]:
        return self.requests, self.generated, self.rounds

    @property
    def accept_length(self) -> float:
        """Tokens per verify round. The last round of a request is cut where the request ends, so that this lies a little
        below the benchmark's 1 + right drafts / rounds: to be compared with itself over time. Raises ZeroDivisionError without rounds."""
        return (self.generated - self.requests) / self.rounds


def read_counters(url: str) -> Counters:
    """The counters of the server at `url`. Raises MachineTrouble when it does not answer, BadInput when it keeps no such counters."""
    import httpx
    from prometheus_client.parser import text_string_to_metric_families

    page = f"{url.rstrip('/')}/metrics"
    try:
        answer = httpx.get(page, timeout=_SECONDS, follow_redirects=True)
        answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        raise BadInput(
            page, found=f"HTTP {error.response.status_code}", expected="SGLang's metrics", do="Start the server with deploy.metrics: true."
        ) from error
    except httpx.HTTPError as error:
        raise MachineTrouble(f"{page}: {error}") from error
    sums = dict.fromkeys(_NAMES.values(), 0.0)
    seen = set()
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
                seen.add(sample.name)
    # A counter without a sample has counted nothing yet; a server that does not speculate never has this one.
    if _NAMES["rounds"] not in seen and _NAMES["generated"] in seen:
        raise BadInput(page, found=f"no {_NAMES['rounds']}", expected="a server that speculates", do="Name the server with the drafter.")
    return Counters(**{name: sums[metric] for name, metric in _NAMES.items()})
