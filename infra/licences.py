"""`make licences`: LICENCES.md, the licence of every package in requirements.lock, as the installed packages declare it."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent.parent
FILE = _PROJECT / "LICENCES.md"
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
_HEAD = """# Licences of the dependencies

Every package of `requirements.lock`, with the licence that its own metadata declares. Written by `make licences`.

| package | version | licence |
|---|---|---|
"""


def locked() -> dict[str, str]:
    """Name to version, as the lock has them."""
    return dict(_LOCKED.findall((_PROJECT / "requirements.lock").read_text(encoding="utf-8")))


def licence(name: str) -> str | None:
    """What an installed package declares, newest form first, else how its licence file begins; None where it is not installed."""
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    told = package.metadata
    classifiers = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier") or [] if c.startswith("License :: ")]
    named = ", ".join(c for c in classifiers if c != "OSI Approved")
    # The old field holds a name, or the whole text of a licence.
    old = _first_line(told.get("License") or "").removeprefix("UNKNOWN")
    return told.get("License-Expression") or named or old or _by_file(package)


def _by_file(package: metadata.Distribution) -> str:
    files = [file for file in package.files or [] if ".dist-info/" in str(file) and file.name.upper().startswith(("LICEN", "COPYING"))]
    begins = [_first_line(Path(str(file.locate())).read_text(encoding="utf-8", errors="replace")) for file in files]
    return f"not declared; its file begins: {begins[0]}" if begins else "not declared"


def _first_line(text: str) -> str:
    return next((line.strip().replace("|", "/")[:80] for line in text.splitlines() if line.strip()), "")


def render(licences: dict[str, str]) -> str:
    """The file's text; `licences` is by name."""
    rows = [f"| {name} | {version} | {licences[name]} |" for name, version in sorted(locked().items())]
    return _HEAD + "\n".join(rows) + "\n"


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Name to (version, licence), read back from the file."""
    cells = [line.strip("| ").split(" | ") for line in text.removeprefix(_HEAD).splitlines()]
    return {name: (version, what) for name, version, what in cells}


def main() -> None:
    """Write the file. A package of another Python or platform, which is not installed here, keeps the licence that stands there."""
    known = {name: what for name, (_, what) in rows(FILE.read_text(encoding="utf-8")).items()} if FILE.is_file() else {}
    FILE.write_text(render({name: licence(name) or known.get(name, "not installed here") for name in locked()}), encoding="utf-8")


if __name__ == "__main__":
    main()
