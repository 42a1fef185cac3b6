"""The suite's table: mutants, caught, named right, false alarms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch


@dataclass
class Score:
    """What was said last of each mutant and control: noted as missed before it is tried, so that a crash counts."""

    said_of_mutants: dict[str, tuple[bool, bool, str]] = field(default_factory=dict)
    said_of_controls: dict[str, tuple[bool, str]] = field(default_factory=dict)

    @property
    def mutants(self) -> list[tuple[str, bool, bool, str]]:
        return [(name, *said) for name, said in self.said_of_mutants.items()]

    @property
    def controls(self) -> list[tuple[str, bool, str]]:
        return [(name, *said) for name, said in self.said_of_controls.items()]

    def mutant(self, name: str, caught: bool, named: bool, said: str) -> None:
        self.said_of_mutants[name] = (caught, named, said)

    def healthy(self, name: str, quiet: bool, said: str) -> None:
        self.said_of_controls[name] = (quiet, said)

    def lines(self) -> list[str]:
        kinds = sorted({name.partition(":")[0] for name, *_ in self.mutants})
        rows = [f"{'kind':<22}{'mutants':>8}{'caught':>8}{'named':>8}"]
        for kind in [*kinds, ""]:
            found = [row for row in self.mutants if row[0].startswith(kind)]
            rows.append(f"{kind or 'all':<22}{len(found):>8}{sum(r[1] for r in found):>8}{sum(r[2] for r in found):>8}")
        rows.append(f"healthy variants: {len(self.controls)}; false alarms: {sum(not quiet for _, quiet, _ in self.controls)}")
        rows += [f"  {name}: {'named wrong' if caught else 'MISSED'} ({said})" for name, caught, named, said in self.mutants if not named]
        return rows + [f"  {name}: false alarm ({said})" for name, quiet, said in self.controls if not quiet]


_SCORE = Score()


@pytest.fixture(scope="session")
def score() -> Score:
    return _SCORE


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Tiny tensors on shared cores: one thread is faster than two that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _SCORE.mutants or _SCORE.controls:
        terminalreporter.section("mutation suite")
        for line in _SCORE.lines():
            terminalreporter.line(line)
