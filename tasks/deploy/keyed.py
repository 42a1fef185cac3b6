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

# It is added to every HTTP server of one tokenizer process, with or without a key (srt/entrypoints/http_server.py:2887-2898).
_MIDDLEWARE = "sglang.srt.utils.auth.add_api_key_middleware"


def main() -> None:
    """Run MODULE as `python -m` does."""
    name, module, *arguments = sys.argv[1:]
    key = os.environ.pop(name)  # scheduler and detokenizer need none

    def with_key(original: Any, app: Any, *, api_key: str | None, admin_api_key: str | None) -> None:
        original(app, api_key=key, admin_api_key=admin_api_key)

    # As in a spawned process: what the module does before SGLang is imported comes first.
    runpy.run_module(module, run_name="__mp_main__")
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_MIDDLEWARE, with_key, HookType.AROUND)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
