"""Combinations that SGLang would change or ignore in silence, refused before anything is started.

Each rule reads what is asked (`ServerArgs` fields) and the configs of target and drafter, and returns what is
wrong or None. Sources are sglang 0.5.23 below `srt/`; the symptoms are in public reports of each kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.deploy.launch import CPU_ATTENTION, Flags
from tasks.store import read_small
from tasks.verdict import BadInput, Check, Outcome
from tasks.wiring.kinds import Kind

# EAGLE-3 drafters whose checkpoints this project writes and can prove.
_SERVED_DRAFTERS = ("LlamaForCausalLMEagle3",)
# Attention backends that draft a tree over pages of several tokens (arg_groups/speculative_hook.py:1268-1272).
_PAGED_TREES = ("flashinfer", "fa3", "triton")


@dataclass(frozen=True)
class Asked:
    """A launch, and the configs of the two models it names."""

    flags: Flags
    target: Mapping[str, Any]
    drafter: Mapping[str, Any] | None


@dataclass(frozen=True)
class Rule:
    name: str
    kind: Kind
    broken: Callable[[Asked], str | None]
    """What is wrong with a speculative launch, with the two values; None if nothing is."""


def refusals(flags: Flags) -> list[Check]:
    """One check per rule; a FAIL names the rule that the launch would break. Starts nothing.

    A plain launch has no draft to be wrong about: only what both servers share is looked at.
    Raises BadInput for a model folder without a readable config.json.
    """
    asked = Asked(flags, _model_config(flags["model_path"]), _drafter_config(flags))
    rules = _SHARED + (_SPECULATIVE if flags["speculative_algorithm"] or flags["speculative_draft_model_path"] else ())
    return [_check(rule, rule.broken(asked)) for rule in rules]


def _check(rule: Rule, problem: str | None) -> Check:
    name = f"rule {rule.name}"
    if problem is None:
        return Check(name=name, verdict=Outcome.PASS, message="kept")
    return Check(name=name, verdict=Outcome.FAIL, kind=rule.kind, message=f"{problem} (rule {rule.name}, refused before the launch)")


def _model_config(folder: str) -> dict[str, Any]:
    path = Path(folder) / "config.json"
    try:
        config: dict[str, Any] = json.loads(read_small(path, 16 << 20))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(str(path), found=str(error), expected="the config.json of a model folder", do="Name the model's folder.") from error
    return config


def _drafter_config(flags: Flags) -> dict[str, Any] | None:
    folder = flags["speculative_draft_model_path"]
    return None if folder is None else _model_config(folder)


def _draft_positions(asked: Asked) -> int:
    return int((asked.drafter or {}).get("max_position_embeddings", 0))


def _context(asked: Asked) -> str | None:
    context, most = asked.flags["context_length"], asked.target.get("max_position_embeddings")
    if most is not None and context > most:
        return f"context_length {context} is beyond the target's {most} positions: set deploy.context_length to at most {most}"
    return None


def _pool(asked: Asked) -> str | None:
    pool, page = asked.flags["max_total_tokens"], asked.flags["page_size"]
    if pool % page:
        return f"max_total_tokens {pool} is no multiple of page_size {page}: SGLang rounds it down"
    if pool < asked.flags["context_length"]:
        return f"max_total_tokens {pool} holds no request of context_length {asked.flags['context_length']}"
    return None


def _cpu_backend(asked: Asked) -> str | None:
    """What the CPU plugin refuses when its backend is made (draftproof_sglang/cpu/refusals.py), a minute into the start."""
    if asked.flags["attention_backend"] != CPU_ATTENTION:
        return None
    page, window = (asked.flags[n] for n in ("page_size", "speculative_draft_window_size"))
    if page > 1:
        return f"page_size {page} on {CPU_ATTENTION}, which is proved with pages of 1 token alone: set deploy.page_size to 1"
    if window is not None:
        return f"a draft window of {window} on {CPU_ATTENTION}, which has no sliding window: leave deploy.draft_window out"
    return None


def _no_draft(asked: Asked) -> str | None:
    if asked.flags["speculative_draft_model_path"] is None:
        return "speculation without a draft path: SGLang would load the target as its own drafter"
    return None


def _algorithm(asked: Asked) -> str | None:
    algorithm = asked.flags["speculative_algorithm"]
    if algorithm is None:
        return "a drafter without speculative_algorithm: SGLang would serve the target alone"
    if algorithm != "EAGLE3":
        return f"speculative_algorithm {algorithm} with an EAGLE-3 drafter starts and accepts nothing: set EAGLE3"
    return None


def _steps(asked: Asked) -> str | None:
    unset = [n for n in ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens") if asked.flags[n] is None]
    return f"{', '.join(unset)} not set: SGLang would choose (5, 4, 8 on Llama)" if unset else None


def _chain(asked: Asked) -> str | None:
    steps, topk, tokens = (asked.flags[f"speculative_{n}"] for n in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if None in (steps, topk, tokens) or topk != 1 or tokens == steps + 1:
        return None
    return f"steps {steps} and topk 1 with {tokens} draft tokens: SGLang would make it {steps + 1} draft tokens"


def _tree(asked: Asked) -> str | None:
    steps, topk, tokens = (asked.flags[f"speculative_{n}"] for n in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if None in (steps, topk, tokens) or topk == 1:
        return None
    most = 1 + topk + (steps - 1) * topk * topk  # the root, the first step's branches, then topk of each branch
    return f"{tokens} draft tokens of a tree of {steps} steps and topk {topk}, which has {most} nodes" if tokens > most else None


def _paged_tree(asked: Asked) -> str | None:
    topk, page, backend = (asked.flags[n] for n in ("speculative_eagle_topk", "page_size", "attention_backend"))
    if (topk or 1) > 1 and page > 1 and backend not in _PAGED_TREES:
        return f"a tree (topk {topk}) with page_size {page} on {backend}: only {', '.join(_PAGED_TREES)} can"
    return None


def _architecture(asked: Asked) -> str | None:
    found = (asked.drafter or {}).get("architectures") or []
    if asked.drafter is None or (len(found) == 1 and found[0] in _SERVED_DRAFTERS):
        return None
    return f"the drafter's architectures are {found}; supported: {', '.join(_SERVED_DRAFTERS)}"


def _draft_vocabulary(asked: Asked) -> str | None:
    if asked.drafter is None or "draft_vocab_size" in asked.drafter:
        return None
    return "the drafter's config.json has no draft_vocab_size: SGLang crashes without it"  # models/llama_eagle3.py


def _draft_positions_cover(asked: Asked) -> str | None:
    most, context = _draft_positions(asked), asked.flags["context_length"]
    if asked.drafter is None or context <= most:
        return None
    return f"context_length {context} is beyond the drafter's {most} positions: prompts could be longer than the drafter was made for"


def _quantisation(asked: Asked) -> str | None:
    method = (asked.target.get("quantization_config") or {}).get("quant_method") or asked.flags["quantization"]
    if method and asked.flags["speculative_draft_model_quantization"] is None:
        return f"the target is quantised ({method}) and nothing is said about the drafter, which would inherit it: set draft_quantisation"
    return None


_SHARED = (
    Rule("context-within-target", Kind.CONTEXT_LENGTH, _context),
    Rule("pool-holds-a-request", Kind.LAUNCH_FLAGS, _pool),
    Rule("cpu-backend", Kind.LAUNCH_FLAGS, _cpu_backend),
)
_SPECULATIVE = (
    Rule("draft-path", Kind.LAUNCH_FLAGS, _no_draft),
    Rule("algorithm", Kind.LAUNCH_FLAGS, _algorithm),
    Rule("steps-explicit", Kind.LAUNCH_FLAGS, _steps),
    Rule("chain-draft-tokens", Kind.LAUNCH_FLAGS, _chain),
    Rule("tree-fills-draft-tokens", Kind.LAUNCH_FLAGS, _tree),
    Rule("tree-with-pages", Kind.LAUNCH_FLAGS, _paged_tree),
    Rule("drafter-architecture", Kind.ARCHITECTURE_FLAGS, _architecture),
    Rule("draft-vocabulary", Kind.VOCAB_MAP, _draft_vocabulary),
    Rule("context-within-drafter", Kind.CONTEXT_LENGTH, _draft_positions_cover),
    Rule("draft-quantisation", Kind.DTYPE_QUANTISATION, _quantisation),
)
