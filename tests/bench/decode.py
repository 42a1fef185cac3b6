"""Greedy decoding of one request: the plain and the speculative server against a bare transformers loop, on 1 thread and on all."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from tasks.deploy import start_server
from tasks.device import cores
from tasks.report import Silent
from tasks.statistics import ratio_of_sums
from tests.bench.drafter import Benched

_PROMPTS, _TOKENS, _REPEATS = 6, 48, 3
_BARE = "transformers loop"
Decode = Callable[[list[int]], int]
"""Decodes `_TOKENS` tokens at most after a prompt; how many there were."""


def measure(benched: Benched) -> tuple[Table, list[dict[str, Any]]]:
    """Every engine answers every prompt in each repeat, in random order, so that they are compared in pairs of the same minute."""
    prompts = [item.tokens[: item.spans[-1][0]] for item in benched.held_out(_PROMPTS)]
    found = [row for threads in sorted({1, cores()}) for row in _on(threads, benched, prompts)]
    table = Table(title=f"Greedy decoding, {len(prompts)} prompts, {_REPEATS} repeats, up to {_TOKENS} tokens")
    for heading in ("threads", "engine", "ready after", "tok/s", "against the transformers loop"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for row in found:
        ready = f"{row['seconds_to_ready']:.0f} s" if row["seconds_to_ready"] else ""
        against = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        table.add_row(str(row["threads"]), row["engine"], ready, f"{row['tok_s']:.1f}", against)
    return table, found


def _on(threads: int, benched: Benched, prompts: Sequence[list[int]]) -> Iterator[dict[str, Any]]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with _engines(threads, benched) as (engines, ready):
            for decode in engines.values():
                decode(prompts[0])  # warm
            seconds = _times(engines, prompts)
    finally:
        torch.set_num_threads(before)
    for name, times in seconds.items():
        ratio = ratio_of_sums([sum(s) for s, _ in seconds[_BARE]], [sum(s) for s, _ in times])
        total, tokens = sum(sum(s) for s, _ in times), sum(n for _, n in times)
        yield {
            "threads": threads,
            "engine": name,
            "seconds_to_ready": ready.get(name),
            "tok_s": tokens / total,
            "ratio": ratio.value,
            "low": ratio.low,
            "high": ratio.high,
        }


def _times(engines: dict[str, Decode], prompts: Sequence[list[int]]) -> dict[str, list[tuple[list[float], int]]]:
    """Of each engine, per prompt: the seconds of each repeat, and the tokens of all of them."""
    draw = random.Random(0)
    seconds: dict[str, list[tuple[list[float], int]]] = {name: [([], 0) for _ in prompts] for name in engines}
    for _ in range(_REPEATS):
        for i, prompt in enumerate(prompts):
            for name in draw.sample(sorted(engines), len(engines)):
                began = time.perf_counter()
                tokens = engines[name](prompt)
                times, so_far = seconds[name][i]
                seconds[name][i] = ([*times, time.perf_counter() - began], so_far + tokens)
    return seconds


@contextmanager
def _engines(threads: int, benched: Benched) -> Iterator[tuple[dict[str, Decode], dict[str, float]]]:
    """The engines by name, and how long the servers took to be ready (one after the other)."""
    deploy = benched.deploy.model_copy(update={"threads": threads, "port": None})
    names = {"plain server": None, f"speculative server ({benched.steps} steps)": benched.steps}
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        plain, speculative = (
            start_server(
                deploy, target=benched.target.folder, drafter=benched.drafter if n else None, steps=n, log=logs / f"{n}", report=Silent()
            )
            for n in names.values()
        )
        with plain, speculative:
            servers = dict(zip(names, (plain, speculative), strict=True))
            engines: dict[str, Decode] = {_BARE: _bare_loop(benched)}
            engines |= {name: lambda prompt, server=server: _ask(server, prompt) for name, server in servers.items()}
            yield engines, {name: server.seconds_to_ready for name, server in servers.items()}


def _ask(server: Any, prompt: list[int]) -> int:
    server.flush_cache()
    return len(server.generate(prompt, _TOKENS).tokens)


def _bare_loop(benched: Benched) -> Decode:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(benched.target.folder, dtype=torch.float32, local_files_only=True).eval()
    ends = benched.opened.facts.eos_token_ids

    @torch.inference_mode()
    def decode(prompt: list[int]) -> int:
        tokens, cache, count = torch.tensor([prompt]), None, 0
        while count < _TOKENS:
            out = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            tokens, cache, count = out.logits[:, -1:].argmax(-1), out.past_key_values, count + 1
            if int(tokens) in ends:
                break
        return count

    return decode
