"""Runs in the serving interpreter, by path: `python keyed.py NAME MODULE ARGUMENT…` is `python -m MODULE ARGUMENT…` that asks for a key.

SGLang 0.5.23 takes its API key from the command line, or from a file that it merges into it; both ways the key then stands
in its log and in `/server_info` (srt/entrypoints/engine.py:1185, srt/utils/common.py:3584-3590). Here the key comes from the
environment variable NAME and goes to the middleware that asks for it, and nowhere else.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any


def main() -> None:
    """Run MODULE as `python -m` does."""
    name, module, *arguments = sys.argv[1:]
    key = os.environ.pop(name)  # scheduler and detokenizer need none

    # As in a spawned process: what the module does before SGLang is imported comes first.
    runpy.run_module(module, run_name="__mp_main__")
    from sglang.srt.utils import auth

    asks_for = auth.add_api_key_middleware

    def with_key(app: Any, *, api_key: str | None, admin_api_key: str | None) -> None:
        asks_for(app, api_key=key, admin_api_key=admin_api_key)

    # An HTTP server of one tokenizer process adds it where it knows a key, or says to have endpoints for administrators alone
    # (srt/entrypoints/http_server.py:2887-2898, which imports both names when it is started). A plugin's hook comes too late.
    auth.add_api_key_middleware = with_key
    auth.app_has_admin_force_endpoints = lambda app: True
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
