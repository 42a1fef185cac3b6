"""SGLang's own scheduler with its model runner and draft worker in one process, without HTTP: one JSON object per line in and out.

`{"arguments": [...], "prompts": [[...], ...], "new_tokens": N}`: the command line of a launch is resolved by SGLang, the scheduler
built from it answers the prompts as probe requests, one at a time. Each launch has a fork of its own, since the imports are most
of a start (sglang 0.5.23).
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from typing import Any

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever SGLang prints is no answer

from draftproof_sglang.cpu import serve  # noqa: E402
from draftproof_sglang.probe import PREFIX  # noqa: E402

serve.hide()

from sglang.srt.plugins import load_plugins  # noqa: E402

load_plugins()

from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.observability.req_time_stats import APIServerReqTimeStats  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import PortArgs, prepare_server_args  # noqa: E402
from sglang.srt.speculative import eagle_worker_v2  # noqa: E402, F401 (imported before the forks)
from sglang.srt.utils import DynamicGradMode  # noqa: E402


def started(arguments: list[str]) -> tuple[Any, dict[str, Any]]:
    """As SGLang's `run_scheduler_process` builds it, and the resolved arguments."""
    args = prepare_server_args(arguments)
    args.resolve_once()
    runtime_context.publish(args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0, gpu_id=0))
    return Scheduler(args, PortArgs.init_new(args)), args.resolved_dict()


@DynamicGradMode()
def generate(scheduler: Any, name: str, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    """One greedy request, by the steps of SGLang's `event_loop_normal`."""
    params = SamplingParams(temperature=0, max_new_tokens=new_tokens, ignore_eos=True)
    params.normalize(None)
    asked = TokenizedGenerateReqInput(
        rid=name,
        input_text="",
        input_ids=array("q", prompt),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=params,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=False,
        time_stats=APIServerReqTimeStats(),
    )
    scheduler.flush_cache()
    scheduler.handle_generate_request(asked)
    request = scheduler.waiting_queue[-1]
    while not request.finished():
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        assert batch, "the request is not finished, and nothing is left to run"
        scheduler.process_batch_result(batch, scheduler.run_batch(batch))
        scheduler.last_batch = batch
    # What was answered is let go of in the round after.
    plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
    scheduler.running_batch, scheduler.last_batch = plan.running_batch, None
    return {"tokens": list(request.output_ids), "verify_rounds": request.spec_verify_ct, "right_drafts": request.spec_num_correct_drafts}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        scheduler, resolved = started(request["arguments"])
        prompts = enumerate(request["prompts"])
        return {
            "resolved": resolved,
            "answers": [generate(scheduler, f"{PREFIX}{i}", prompt, request["new_tokens"]) for i, prompt in prompts],
        }
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}


def forked(line: str) -> None:
    child = os.fork()
    if child == 0:
        print(json.dumps(answer(json.loads(line)), default=str), file=answers, flush=True)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        print(json.dumps({"error": "ended", "message": f"wait status {status}"}), file=answers, flush=True)


if __name__ == "__main__":
    for line in sys.stdin:
        forked(line)
