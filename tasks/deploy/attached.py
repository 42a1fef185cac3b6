"""A server that is already running, started by somebody else: asked, and never ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import httpx

from tasks.addresses import taken_apart
from tasks.deploy.client import Client, Impostor
from tasks.deploy.key import VARIABLE, header
from tasks.deploy.questions import Questions
from tasks.verdict import BadInput, MachineTrouble


class AttachedServer(Questions):
    """Answers are taken only from the server that was there at first: its weight version is remembered.

    Its API key is what DRAFTPROOF_API_KEY holds, if it asks for one. Raises BadInput when nothing that SGLang is answers at `url`.
    """

    def __init__(self, url: str, request_seconds: float) -> None:
        self.url = url.rstrip("/")
        key = os.environ.get(VARIABLE)
        self._client = Client(self.url, _identity(self.url, key), request_seconds, key)

    def check_alive(self) -> None:
        """Raises MachineTrouble when the server does not answer any more."""
        with self._trouble("/model_info"):
            if not self._client.is_up():
                raise MachineTrouble(f"{self.url}: the server does not answer any more")

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _trouble(self, what: str) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, Impostor) as error:
            raise MachineTrouble(f"{self.url}: {what} failed: {type(error).__name__}: {error}") from error


def _identity(url: str, key: str | None) -> str:
    try:
        if taken_apart(url).user is not None:
            raise BadInput(url, found="a user in the address", expected="an address alone", do=f"Put the server's API key into {VARIABLE}.")
        answer = httpx.get(f"{url}/model_info", timeout=10, trust_env=False, headers=header(key))
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            found = "a server that asks for an API key" + (" and refuses ours" if key else "")
            raise BadInput(url, found=found, expected=f"its key in the environment variable {VARIABLE}", do=f"export {VARIABLE}=…")
        return str(answer.raise_for_status().json()["weight_version"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            url, found=f"no SGLang server ({type(error).__name__}: {error})", expected="the address of one", do="Start it first."
        ) from error
