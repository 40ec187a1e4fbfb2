"""What a run found: figures, ratios against targets, and the machine they were taken on."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A bound that a figure has to keep."""

    name: str
    measured: float
    bound: float
    is_minimum: bool
    unit: str = ""

    @property
    def is_reached(self) -> bool:
        return self.measured >= self.bound if self.is_minimum else self.measured <= self.bound


@dataclass
class Report:
    """Figures by section, in the order in which they were added."""

    sections: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)

    def add(self, section: str, name: str, value: float, unit: str) -> float:
        """Record a figure, print it at once, and return it."""
        text = f"{value:,.3f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
        self.sections.setdefault(section, []).append((name, text))
        self.values[f"{section}: {name}"] = value
        print(f"{section}: {name}: {text}", flush=True)
        return value

    def at_least(self, name: str, measured: float, bound: float, unit: str = "") -> None:
        self._target(Target(name, measured, bound, is_minimum=True, unit=unit))

    def at_most(self, name: str, measured: float, bound: float, unit: str = "") -> None:
        self._target(Target(name, measured, bound, is_minimum=False, unit=unit))

    def _target(self, target: Target) -> None:
        self.targets.append(target)
        state = "reached" if target.is_reached else "MISSED"
        print(
            f"  {target.name}: {target.measured:.2f} against {target.bound} {target.unit}: {state}"
        )

    def write(self, folder: Path, facts: dict[str, str]) -> Path:
        """Write the report as Markdown and as JSON; return the Markdown file."""
        folder.mkdir(parents=True, exist_ok=True)
        name = datetime.now(UTC).strftime("%Y-%m-%d")
        lines = [f"# Benchmark of {name}", "", "| Machine | |", "|---|---|"]
        lines += [f"| {key} | {value} |" for key, value in (machine() | facts).items()]
        lines += ["", "All figures are of one run on this machine.", "", "## Targets", ""]
        lines += ["| Target | Measured | Bound | |", "|---|---|---|---|"]
        for target in self.targets:
            sign = "≥" if target.is_minimum else "≤"
            state = "reached" if target.is_reached else "**missed**"
            measured = f"{target.measured:.2f} {target.unit}".strip()
            lines.append(f"| {target.name} | {measured} | {sign} {target.bound} | {state} |")
        for section, rows in self.sections.items():
            lines += ["", f"## {section}", "", "| | |", "|---|---|"]
            lines += [f"| {key} | {value} |" for key, value in rows]
        path = folder / f"{name}.md"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        path.with_suffix(".json").write_text(
            json.dumps({"machine": machine() | facts, "values": self.values}, indent=1) + "\n",
            encoding="utf-8",
        )
        return path


def machine() -> dict[str, str]:
    """Return what identifies this kind of machine, without names or paths."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory = int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[1]) // (1 << 20)
    return {
        "processor": f"{cpu}, {os.cpu_count()} cores",
        "memory": f"{memory} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "load average at the end": f"{os.getloadavg()[1]:.1f} (5 minutes, the run included)",
    }
