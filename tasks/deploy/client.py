"""What is said to a server over HTTP: greedy generation by token ids, and its own account of itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx

from tasks.deploy.generation import Generation
from tasks.deploy.key import header
from tasks.deploy.stream import stream
from tasks.verdict import MachineTrouble

_SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")


class Impostor(Exception):
    """Somebody else answers at the server's address."""


class Client:
    """Talks to one server and accepts no answer that does not carry its identity. May be used by several threads."""

    def __init__(self, url: str, identity: str, request_seconds: float, key: str | None = None) -> None:
        self._identity = identity
        # No proxy of the environment stands between us and our own machine.
        self._http = httpx.Client(base_url=url, timeout=httpx.Timeout(request_seconds, connect=10), trust_env=False, headers=header(key))

    def close(self) -> None:
        self._http.close()

    def is_up(self) -> bool:
        """Whether our server answers at all; it may not generate yet. Raises Impostor if another one does."""
        try:
            answer = self._http.get("/model_info", timeout=10)
        except httpx.TransportError:
            return False
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return False
        self._own(_json(answer), f"GET /model_info: status {answer.status_code}")
        return True

    def generate(
        self,
        input_ids: Sequence[int],
        max_new_tokens: int,
        *,
        ignore_eos: bool = False,
        seconds: float | None = None,
        request_id: str | None = None,
    ) -> Generation:
        """Greedy continuation of token ids. Raises httpx.HTTPError when no answer comes (within `seconds`), Impostor, MachineTrouble."""
        body: dict[str, Any] = {
            "input_ids": list(input_ids),
            "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos},
        }
        if request_id is not None:
            body["rid"] = request_id
        begun = time.perf_counter()
        answer = self._http.post("/generate", json=body, timeout=httpx.USE_CLIENT_DEFAULT if seconds is None else seconds)
        taken = time.perf_counter() - begun
        if answer.status_code != httpx.codes.OK:
            raise MachineTrouble(f"{answer.url}: status {answer.status_code}: {answer.text[:500]}")
        content = _json(answer)
        self._own(content.get("meta_info") or {}, "POST /generate")
        return _generation(content, taken)

    def stream(self, input_ids: Sequence[int], max_new_tokens: int) -> Generation:
        """As `generate`, streamed: the time of the first token is known too."""
        found = stream(self._http, {"input_ids": list(input_ids), "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens}})
        self._own(found.content.get("meta_info") or {}, "POST /generate")
        made = _generation(found.content, found.seconds)
        return replace(made, first_seconds=found.first_seconds, first_tokens=found.first_tokens)

    def info(self) -> dict[str, Any]:
        """`/server_info`: resolved arguments and live state, less secrets. Raises httpx.HTTPError, Impostor."""
        content = _json(self._http.get("/server_info").raise_for_status())
        self._own(content, "GET /server_info")
        return _without_secrets(content)

    def status_for_a_stranger(self) -> int:
        """HTTP status of a request that brings no key. Raises httpx.HTTPError."""
        request = self._http.build_request("GET", "/model_info")
        request.headers.pop("Authorization", None)
        return self._http.send(request).status_code

    def flush_cache(self) -> None:
        """Forget all prefixes. Raises MachineTrouble when the server refuses, as it does while requests run."""
        # The scheduler may not have noticed yet that the last request is over: it gets some seconds.
        answer = self._http.post("/flush_cache", params={"timeout": 10})
        if answer.status_code != httpx.codes.OK:
            raise MachineTrouble(f"{answer.url}: the cache was not flushed: status {answer.status_code}: {answer.text[:200]}")

    def freeze_gc(self) -> None:
        """Have Python's garbage collector leave alone what is loaded. Raises httpx.HTTPError.

        SGLang does so when it has started, but with `skip_server_warmup` mostly asks before its own port is open (sglang 0.5.23): then
        a flush takes one server 0.3 s and another 3 ms, and so may any full collection.
        """
        self._http.post("/freeze_gc").raise_for_status()

    def _own(self, content: dict[str, Any], what: str) -> None:
        if content.get("weight_version") != self._identity:
            raise Impostor(f"{what}: it calls itself {content.get('weight_version')!r}, ours is {self._identity!r}")


def _without_secrets(info: dict[str, Any]) -> dict[str, Any]:
    """A server that was started with a key on its command line tells it (sglang 0.5.23); what we are told goes to MLflow."""
    held = [name for name in _SECRETS if info.get(name)]
    return info | dict.fromkeys([*held, "launch_command"], "***") if held else info


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        content = answer.json()
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _generation(content: dict[str, Any], seconds: float) -> Generation:
    meta, tokens = content["meta_info"], list(content["output_ids"])
    if meta["completion_tokens"] != len(tokens):
        raise MachineTrouble(f"the server counts {meta['completion_tokens']} tokens and sent {len(tokens)}")
    return Generation(
        tokens=tokens,
        prompt_tokens=meta["prompt_tokens"],
        cached_tokens=meta["cached_tokens"],
        seconds=seconds,
        finish_reason=str((meta["finish_reason"] or {}).get("type")),
        # Absent where nothing was verified: a plain server, or an answer of the prefill token alone.
        verify_rounds=meta.get("spec_verify_ct", 0),
        right_drafts=meta.get("spec_num_correct_drafts", 0),
        proposed_drafts=meta.get("spec_num_proposed_drafts", 0),
        histogram=tuple(meta.get("spec_correct_drafts_histogram", ())),
    )
