"""The licences of the dependencies are listed, and the list is the lock's."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

from infra import licences

PROJECT = Path(__file__).resolve().parents[2]
# Of the Apache License 2.0 as apache.org publishes it for GitHub.
APACHE_2 = "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4"


def test_the_list_has_the_packages_of_the_lock() -> None:
    listed = licences.rows(licences.FILE.read_text(encoding="utf-8"))
    assert {name: version for name, (version, _) in listed.items()} == licences.locked(), "run `make licences`"
    assert len(listed) > 300


def test_each_licence_is_what_the_installed_package_declares() -> None:
    """One of another Python or platform is not installed here, and stays as it is."""
    listed = licences.rows(licences.FILE.read_text(encoding="utf-8"))
    installed = {name: found for name in listed if (found := licences.licence(name)) is not None}
    assert len(installed) > 250
    assert {name: listed[name][1] for name in installed} == installed, "run `make licences`"
    assert licences.render({name: what for name, (_, what) in listed.items()}) == licences.FILE.read_text(encoding="utf-8")


def test_our_own_licence_is_the_one_that_we_declare() -> None:
    for file in ("pyproject.toml", "infra/sglang_plugins/pyproject.toml"):
        assert tomllib.loads((PROJECT / file).read_text())["project"]["license"] == {"text": "Apache-2.0"}
    assert hashlib.sha256((PROJECT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
