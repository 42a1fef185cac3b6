"""From conversations to feature files, a manifest and the wiring record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from tasks.capture import files, resolve_boundaries
from tasks.capture.check import check
from tasks.config import CaptureConfig
from tasks.device import Placement
from tasks.products import KEPT_FEATURES, CaptureProduct, DataProduct, TargetProduct, feature_file
from tasks.report import Report
from tasks.store import Store, code_digest, need_disk, sha256_file, versions, write_atomic
from tasks.verdict import Outcome, ProofFailed, Verdict
from tasks.wiring.extraction import Extractor, SecondPath
from tasks.wiring.record import Features, WiringRecord

_Item = TypeVar("_Item")

MANIFEST, SHARDS = "manifest.json", "shards.jsonl"
_AT_ONCE = 256
"""Conversations that are looked at together: what an interruption can cost."""


def capture(
    config: CaptureConfig,
    *,
    data: DataProduct,
    target: TargetProduct,
    open_target: Callable[[], Extractor],
    open_reference: Callable[[], SecondPath],
    placement: Placement,
    store: Store,
    report: Report,
) -> CaptureProduct:
    """See `tasks.capture.capture_features`."""
    boundaries = resolve_boundaries(config, target)
    stored = [*boundaries, target.print.num_layers]
    inputs = {
        "config": config.model_dump(),
        "boundaries": boundaries,
        "data": data.sha256,
        "kept": (data.folder / KEPT_FEATURES).is_dir(),  # computed afterwards they differ by rounding
        "target": target.sha256,
        "placement": placement.model_dump(),
        "versions": versions("torch", "transformers"),
        "code": code_digest("capture", "target"),
    }
    key = store.key("capture", inputs)

    def build(folder: Path) -> dict[str, Any]:
        # Kept features share their bytes with the data's folder; what cannot be shared is at most all of it.
        need_disk(folder, data.tokens * len(stored) * target.print.hidden_size * 2, "features")
        reused = _fill(folder, data, stored, open_target, report)
        verdict, worst = check(folder, data.rows(), stored, open_reference(), config.check_samples, placement.dtype)
        if verdict.verdict in (Outcome.FAIL, Outcome.INVALID):
            raise ProofFailed(verdict)
        _write_record(folder, boundaries, placement, data, target)
        manifest = _manifest(folder, boundaries, placement, data, target, verdict, reused)
        write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        report.say(f"{manifest['rows']} conversations, {reused} of them captured while they were answered; worst cosine {worst:.5f}")
        return {
            "sha256": sha256_file(folder / MANIFEST),
            "boundaries": boundaries,
            "rows": manifest["rows"],
            "tokens": manifest["tokens"],
            "worst_cosine": worst,
            "checks": manifest["checks"]["checks"],
        }

    product = store.make("capture", key, build)
    return CaptureProduct(folder=store.folder("capture", key), **product)


def _fill(folder: Path, data: DataProduct, stored: list[int], open_target: Callable[[], Extractor], report: Report) -> int:
    """Bring every row's file into `folder`, linked or computed; the number of those linked."""
    reused, total = 0, data.train + data.held_out
    extractor: Extractor | None = None
    for block in batched(enumerate(data.rows()), _AT_ONCE):
        missing: list[tuple[int, list[int]]] = []
        for row, conversation in block:
            source = files.kept(data.folder / KEPT_FEATURES, conversation.id)
            if files.holds(source, conversation.tokens, len(stored)):
                files.link(source, feature_file(folder, row))
                reused += 1
            else:
                missing.append((row, conversation.tokens))
        # All or none of a block: rounding depends on what is computed together, and an interruption must not show.
        if not all(files.holds(feature_file(folder, row), tokens, len(stored)) for row, tokens in missing):
            extractor = extractor or open_target()
            for index, features in extractor.features([tokens for _, tokens in missing], stored):
                row, tokens = missing[index]
                files.write(feature_file(folder, row), features, tokens)
        report.progress(block[-1][0] + 1, total, "conversations")
    return reused


def batched(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """`itertools.batched`, which Python 3.11 does not have."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block


def _write_record(folder: Path, boundaries: list[int], placement: Placement, data: DataProduct, target: TargetProduct) -> None:
    features = Features(boundaries=boundaries, dtype="bfloat16", compute_dtype=placement.dtype)
    WiringRecord(
        target=target.print,
        features=features,
        data_sha256=data.sha256,
        versions=versions("torch", "transformers", "safetensors"),
    ).write(folder)


def _manifest(
    folder: Path, boundaries: list[int], placement: Placement, data: DataProduct, target: TargetProduct, verdict: Verdict, reused: int
) -> dict[str, Any]:
    """What is there and what it was made of; each file's shape and hash are a line of `shards.jsonl`."""
    rows = tokens = 0
    with (folder / SHARDS).open("w", encoding="utf-8") as lines:
        for row, conversation in enumerate(data.rows()):
            path = feature_file(folder, row)
            rows, tokens = rows + 1, tokens + len(conversation.tokens)
            shape = [len(conversation.tokens), len(boundaries) + 1, target.print.hidden_size]
            shard = {"conversation": conversation.id, "split": conversation.split, "shape": shape, "sha256": sha256_file(path)}
            lines.write(json.dumps({"file": path.name, **shard}) + "\n")
    return {
        "format": 1,
        "boundaries": boundaries,
        "last_state": "before-final-norm",
        "dtype": "bfloat16",
        "compute_dtype": placement.dtype,
        "rows": rows,
        "tokens": tokens,
        "captured_while_answering": reused,
        "target": target.print.model_dump(),
        "data_sha256": data.sha256,
        "checks": verdict.model_dump(mode="json"),
        "shards": {"file": SHARDS, "sha256": sha256_file(folder / SHARDS)},
    }
