"""API keys: in an environment variable, and from there nowhere but into a request's header and the server's own process."""

from __future__ import annotations

import os

from tasks.config import DeployConfig
from tasks.verdict import BadInput

# Of a server that somebody else started.
VARIABLE = "DRAFTPROOF_API_KEY"


def check_key(config: DeployConfig) -> None:
    """Raises BadInput when the variable that the config names holds no key."""
    if config.api_key_env is not None:
        key_in(config.api_key_env)


def key_in(name: str) -> str:
    """The key. Raises BadInput where there is none, or one that no header can carry; its value is not told."""
    key = os.environ.get(name, "")
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(
            "deploy.api_key_env",
            found=f"{name}, which holds no key" if key else f"{name}, which is not set",
            expected="an environment variable with an API key, of printable ASCII characters",
            do=f"export {name}=…",
        )
    return key


def header(key: str | None) -> dict[str, str]:
    """As SGLang and OpenAI's clients have it."""
    return {"Authorization": f"Bearer {key}"} if key else {}
