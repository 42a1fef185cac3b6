"""An interpreter that stands in for the serving one: a small real process that answers, dies or hangs as told.

SGLang takes a minute to start; what is tested with this is our own side of a server's life, over real processes,
signals, sockets and files. The real server is in tests/servers.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Two children, as SGLang has its scheduler and detokenizer; one of them in a session of its own.
SERVE = """
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
words = sys.argv[1:]
flags = {}
for i, w in enumerate(words):
    if w.startswith("--"):
        value = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else "true"
        name = w[2:].replace("-", "_")
        try: flags[name] = json.loads(value)
        except ValueError: flags[name] = value
mode = MODE
key = os.environ[words[1]] if words[0].endswith("keyed.py") and mode != "open" else None
if mode == "die":
    print("the disk is made of cheese", file=sys.stderr); sys.exit(7)
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=own) for own in (False, True)]
if mode == "hang":
    time.sleep(600)
resolved = dict(DEFAULTS, **flags)
resolved["cuda_graph_config"] = {p: {"backend": resolved.get("cuda_graph_backend_" + p)} for p in ("decode", "prefill")}
resolved["max_total_num_tokens"] = resolved["max_total_tokens"]
resolved.update(LIES)
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words): pass
    def answer(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def events(self, content):
        self.send_response(200); self.send_header("Content-Type", "text/event-stream"); self.end_headers()
        for n in range(1, len(content["output_ids"]) + 1):
            part = dict(content, output_ids=content["output_ids"][:n])
            if mode == "breaks" and n == 2: part = {"error": {"message": "out of memory"}}
            self.wfile.write(("data: " + json.dumps(part) + "\\n\\n").encode()); self.wfile.flush(); time.sleep(0.02)
        self.wfile.write(b"data: [DONE]\\n\\n"); self.close_connection = True
    def stranger(self): return key is not None and self.headers.get("Authorization") != "Bearer " + key
    def do_GET(self): self.answer({}, 401) if self.stranger() else self.answer(resolved)
    def do_POST(self):
        if self.stranger(): return self.answer({}, 401)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        if self.path.startswith("/flush_cache"): return self.answer({}, 400 if mode == "busy" else 200)
        if self.path == "/freeze_gc": return self.answer({}, 500 if mode == "unfrozen" else 200)
        if mode == "stuck" and body["sampling_params"]["max_new_tokens"] != 8: time.sleep(600)
        n = body["sampling_params"]["max_new_tokens"]
        meta = dict(weight_version=flags["weight_version"], completion_tokens=n, prompt_tokens=len(body["input_ids"]), cached_tokens=0)
        meta["finish_reason"] = {"type": "length", "length": n}
        if flags.get("speculative_num_steps") and mode != "silent":
            meta.update(spec_verify_ct=n - 1, spec_num_correct_drafts=0)
            meta.update(spec_num_proposed_drafts=n - 1, spec_correct_drafts_histogram=[n - 1, 0])
        answer = {"output_ids": [5] * n, "meta_info": meta}
        self.events(answer) if body.get("stream") else self.answer(answer)
ThreadingHTTPServer((flags["host"], flags["port"]), Handler).serve_forever()
"""


def interpreter(folder: Path, mode: str = "serve", **lies: object) -> str:
    """An executable that takes `-m sglang.launch_server …`. `lies` are resolved values that differ from what is asked."""
    from tasks.config import DeployConfig
    from tasks.deploy.launch import plan

    defaults = plan(DeployConfig(device="cpu"), target=folder, drafter=None, steps=None, port=1).flags
    path = folder / f"python-{mode}"
    head = f"#!{sys.executable}\nMODE = {mode!r}\nDEFAULTS = {defaults!r}\nLIES = {lies!r}\n"
    path.write_text(head + SERVE)
    path.chmod(0o755)
    return str(path)
