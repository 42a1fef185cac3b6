"""Link 1 of the chain of proof: what was captured is what the target computes, by a path that shares no code with capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tasks.capture import files
from tasks.products import Conversation, feature_file
from tasks.verdict import Check, Outcome, Verdict
from tasks.wiring.extraction import SecondPath
from tasks.wiring.kinds import Kind

MIN_COSINE = {"float32": 0.999, "bfloat16": 0.99}
"""Smallest cosine of a feature and its second extraction (float32) at any token, by what capture computed in.

Measured on SmolLM2-135M, boundaries 2, 15, 27, 30, 1,450 tokens. Stored as bfloat16 but computed in float32: smallest
0.999996. Computed in bfloat16, which rounds weights and every intermediate: smallest 0.9971, mean 0.9998. The next
boundary instead: smallest 0.85 to 0.93, mean 0.95 to 0.97.
"""
MIN_MEAN_COSINE = 0.999
"""Smallest mean over the tokens of a sample, at any boundary: steadier than the worst token, and as strict in both dtypes."""
MIN_AGREEMENT = 0.98
"""Least share of positions where the saved last state gives the target's own argmax (rounded states turn near-ties around)."""
NEAR_TIE = {"float32": 0.05, "bfloat16": 0.5}
"""A position counts only when the target's two best logits are further apart than this (measured in bfloat16: all 18
other choices among 1,450 had gaps below 0.19)."""


@dataclass(frozen=True)
class _Sample:
    row: int
    conversation: Conversation
    features_SnH: torch.Tensor
    tokens: list[int]


def check(
    folder: Path, conversations: Sequence[Conversation], stored: list[int], reference: SecondPath, count: int, compute_dtype: str
) -> tuple[Verdict, float]:
    """The verdict over `count` samples spread over all rows (and every file's zeros, NaN and length), and the worst cosine."""
    rows = len(conversations)
    picked = {round(i * (rows - 1) / max(1, count - 1)) for i in range(count)}
    checks, worst = [], 1.0
    whole = Check(
        name="every file",
        verdict=Outcome.PASS,
        message=f"{rows} files are whole: lengths, tokens, no zeros, no NaN",
        numbers={"rows": rows},
    )
    for row, conversation in enumerate(conversations):
        sample = _Sample(row, conversation, *files.read(feature_file(folder, row)))
        fault = _fault(sample, len(stored))
        if fault:
            whole = _fail(
                "every file", Kind.FEATURES, f"hs_{sample.row}: {fault}. Delete the capture, and capture again.", {"row": sample.row}
            )
            break
        if sample.row in picked:
            found, cosine = _compare(sample, stored, reference, compute_dtype)
            checks += found
            worst = min(worst, cosine)
    return Verdict.of("capture", [whole, *checks], passed=f"{len(picked)} samples extracted again, worst cosine {worst:.5f}"), worst


def _fault(sample: _Sample, boundaries: int) -> str | None:
    """What is wrong with a file by itself."""
    features = sample.features_SnH
    if sample.tokens != sample.conversation.tokens:
        return "other tokens than the conversation's"
    if list(features.shape[:2]) != [len(sample.tokens), boundaries]:
        return f"shape {list(features.shape)} for {len(sample.tokens)} tokens and {boundaries} boundaries"
    if not bool(torch.isfinite(features).all()):
        return "features that are not finite"
    if bool((features == 0).all(-1).any()):
        return f"a state of zeros at token {int((features == 0).all(-1).any(-1).nonzero()[0])}"
    return None


def _compare(sample: _Sample, stored: list[int], reference: SecondPath, compute_dtype: str) -> tuple[list[Check], float]:
    expected_SnH = reference.features(sample.tokens, stored)
    cosine_Sn = torch.cosine_similarity(sample.features_SnH.float(), expected_SnH, dim=-1)
    position, slot = divmod(int(cosine_Sn.argmin()), len(stored))
    worst, mean, bound = float(cosine_Sn.min()), float(cosine_Sn.mean(0).min()), MIN_COSINE[compute_dtype]
    numbers = {"row": sample.row, "cosine": worst, "bound": bound, "mean_cosine": mean, "token": position, "boundary": stored[slot]}
    name = f"features of row {sample.row}"
    told = f"smallest cosine {worst:.5f} (bound {bound}), smallest mean {mean:.5f} (bound {MIN_MEAN_COSINE})"
    if worst >= bound and mean >= MIN_MEAN_COSINE:
        features = Check(name=name, verdict=Outcome.PASS, message=told, numbers=numbers)
    else:
        features = _fail(
            name, Kind.FEATURES, f"{told}, worst at token {position}, boundary {stored[slot]}. Check what captured it.", numbers
        )
    return [features, _teacher(sample, reference, compute_dtype)], worst


def _teacher(sample: _Sample, reference: SecondPath, compute_dtype: str) -> Check:
    """The trainer's targets come from head(norm(last state)): they have to be the target's own choices."""
    own_SV = reference.logits(sample.tokens)
    best_S2 = own_SV.topk(2).values
    clear_S = best_S2[:, 0] - best_S2[:, 1] > NEAR_TIE[compute_dtype]
    same_S = reference.head(sample.features_SnH[:, -1].float()).argmax(-1) == own_SV.argmax(-1)
    same, clear = int((same_S & clear_S).sum()), int(clear_S.sum())
    numbers = {"row": sample.row, "same": same, "clear": clear, "positions": len(sample.tokens), "same_of_all": int(same_S.sum())}
    name = f"teacher targets of row {sample.row}"
    if clear and same >= MIN_AGREEMENT * clear:
        return Check(name=name, verdict=Outcome.PASS, message=f"{same} of {clear} clear choices are the target's own", numbers=numbers)
    if not clear:
        return Check(
            name=name,
            verdict=Outcome.WARN,
            kind=Kind.TEACHER_TARGETS,
            message="the target makes no clear choice in this sample",
            numbers=numbers,
        )
    message = f"only {same} of {clear} choices of the saved last state are the target's own. Take it before the final norm."
    return _fail(name, Kind.TEACHER_TARGETS, message, numbers)


def _fail(name: str, kind: Kind, message: str, numbers: dict[str, Any]) -> Check:
    return Check(name=name, verdict=Outcome.FAIL, kind=kind, message=message, numbers=numbers)
