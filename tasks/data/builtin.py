"""Prompts from the documentation that ships with Python: one narrow, useful task, so that a small drafter learns it soon.

Sources are parsed, not imported: nothing of the standard library runs.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from tasks.data.raw import Raw

DOCUMENTED = "Explain in plain words what the Python function `{name}` does.\n\n{text}"
PARAGRAPH = "Explain in plain words what this part of the Python manual says.\n\n{text}"
_SHORTEST, _LONGEST = 50, 320
"""Characters of a documentation text: enough to say something about, short enough for a prompt of some hundred tokens."""
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "ensurepip", "pydoc_data", "__pycache__"}


def python_docs() -> list[Raw]:
    """Every prompt, in a fixed order for one Python version."""
    found = [*_documented(), *_paragraphs()]
    return [Raw([{"role": "user", "content": template.format(name=name, text=text)}], subject=text) for template, name, text in found]


def _documented() -> Iterator[tuple[str, str, str]]:
    for name, doc in [*_from_sources(), *_from_builtins()]:
        if text := _shortened(doc):
            yield DOCUMENTED, name, text


def _from_sources() -> Iterator[tuple[str, str]]:
    """(dotted name, docstring) of every public function, class and method of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _SKIPPED.intersection(parts) or any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        yield from _docstrings(tree, ".".join(part for part in parts if part != "__init__"))


def _docstrings(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, str]]:
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not child.name.startswith("_"):
            name = f"{prefix}.{child.name}"
            if doc := ast.get_docstring(child):
                yield name, doc
            if isinstance(child, ast.ClassDef):
                yield from _docstrings(child, name)


def _from_builtins() -> Iterator[tuple[str, str]]:
    """(dotted name, docstring) of what is compiled into the interpreter."""
    for module in sorted(sys.builtin_module_names):
        for name, value in sorted(vars(__import__(module)).items()):
            if name.startswith("_") or not (inspect.isroutine(value) or inspect.isclass(value)):
                continue
            owner = name if module == "builtins" else f"{module.lstrip('_')}.{name}"
            members = sorted(vars(value).items()) if inspect.isclass(value) else []
            for dotted, thing in [
                (owner, value),
                *((f"{owner}.{k}", v) for k, v in members if not k.startswith("_") and inspect.isroutine(v)),
            ]:
                if isinstance(doc := getattr(thing, "__doc__", None), str):
                    yield dotted, inspect.cleandoc(doc)


def _paragraphs() -> Iterator[tuple[str, str, str]]:
    from pydoc_data.topics import topics

    for _, topic in sorted(topics.items()):
        for paragraph in topic.split("\n\n"):
            text = re.sub(r"\s+", " ", paragraph).strip()
            if _SHORTEST <= len(text) <= _LONGEST and text[0].isalpha() and text.endswith("."):
                yield PARAGRAPH, "", text


def _shortened(doc: str) -> str | None:
    """The leading paragraphs that fit, or None."""
    text = ""
    for paragraph in doc.strip().split("\n\n"):
        longer = f"{text}\n\n{paragraph}".strip()
        if len(longer) > _LONGEST:
            break
        text = longer
    return text if len(text) >= _SHORTEST else None
