"""From `target.source` to a folder that can be loaded: a table of sources."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tasks.config import TargetConfig
from tasks.products import TargetProduct
from tasks.report import Report
from tasks.store import Store, code_digest, sha256_file, sha256_json, versions
from tasks.target.folder import fingerprint
from tasks.verdict import BadInput, MachineTrouble

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.txt", "*.model"]


def prepare(config: TargetConfig, *, store: Store, report: Report) -> TargetProduct:
    """See `tasks.target.prepare_target`."""
    scheme, _, name = config.source.partition(":")
    folder = _SOURCES[scheme](name, config, store, report) if scheme in _SOURCES else Path(config.source)
    printed = fingerprint(folder, trust_remote_code=config.trust_remote_code)
    return TargetProduct(
        folder=folder,
        name=config.name,
        print=printed,
        sha256=sha256_json(printed.model_dump()),
        trust_remote_code=config.trust_remote_code,
    )


def _from_package(package: str, config: TargetConfig, store: Store, report: Report) -> Path:
    """The GGUF file inside of an installed package, converted once. The package itself is never imported."""
    from tasks.target.gguf import convert

    source = _gguf_of_package(package)
    inputs = {
        "gguf": sha256_file(source),
        "versions": versions("transformers", "gguf", "tokenizers"),
        "code": code_digest("target/gguf.py"),
    }
    key = store.key("target", inputs)

    def build(folder: Path) -> dict[str, str]:
        report.say(f"converting {source.name} to safetensors")
        convert(source, folder)
        return {"source": source.name}

    store.make("target", key, build)
    return store.folder("target", key)


def _gguf_of_package(package: str) -> Path:
    spec = find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise BadInput(
            "target.source", found=f"no installed package {package}", expected="a package with a GGUF file", do="Run `make setup`."
        )
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if len(files) != 1:
        raise BadInput("target.source", found=f"{len(files)} GGUF files in {package}", expected="exactly one", do="Name a folder instead.")
    return files[0]


def _from_hub(repository: str, config: TargetConfig, store: Store, report: Report) -> Path:
    """A snapshot in the hub's own cache; weights only as safetensors."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    patterns = _HUB_FILES + (["*.py"] if config.trust_remote_code else [])
    try:
        return Path(snapshot_download(repository, revision=config.revision, allow_patterns=patterns))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise BadInput(
            "target.source",
            found=f"hub:{repository} at {config.revision or 'main'}, which the hub does not have",
            expected="a hub id",
            do=str(error),
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise MachineTrouble(
            f"hub:{repository} cannot be fetched ({error}). Go online, or name a local folder as target.source."
        ) from error


_SOURCES: dict[str, Callable[[str, TargetConfig, Store, Report], Path]] = {"pypi": _from_package, "hub": _from_hub}
