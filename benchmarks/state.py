"""What the scenarios of one run share: where they work, what they found, and the report of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load import Figures
from benchmarks.report import Report


@dataclass
class Run:
    """The state that scenarios share."""

    folder: Path
    report: Report
    sizes: list[int]
    is_long: bool
    found: dict[str, float] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def keep(self, section: str, name: str, value: float, unit: str) -> float:
        self.found[f"{section}: {name}"] = value
        return self.report.add(section, name, value, unit)

    def keep_load(self, section: str, name: str, figures: Figures) -> Figures:
        self.keep(section, f"{name}, rate", figures.rate, "/s")
        self.keep(section, f"{name}, median", figures.median_ms, "ms")
        self.keep(section, f"{name}, p99", figures.p99_ms, "ms")
        return figures
