"""`python -m benchmarks`: the real daemon on a real disk, and others doing the same work.

Everything runs on this machine and stops by itself. Only ratios within one run mean something.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import comparisons, postgres, scenarios
from benchmarks.report import Report
from benchmarks.state import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--sizes", default="1000,10000,100000", help="entities, ascending")
    parser.add_argument("--only", default="", help="comma-separated names of scenarios")
    parser.add_argument("--long", action="store_true", help="also a million changes and requests")
    parser.add_argument("--folder", type=Path, help="where data is kept meanwhile (a real disk)")
    parser.add_argument("--report", type=Path, default=Path(__file__).parent / "reports")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    wanted = set(filter(None, options.only.split(",")))
    report = Report()
    folder = Path(tempfile.mkdtemp(prefix="patchouli-bench-", dir=options.folder))
    keep_bytecode(folder)
    try:
        run = Run(folder, report, sizes=sizes, is_long=options.long)
        for name, scenario in (scenarios.ALL | comparisons.ALL).items():
            if not wanted or name in wanted:
                print(f"\n== {name}", flush=True)
                scenario(run)
        scenarios.judge(run)
        facts = {"PostgreSQL": postgres.version(), "commit": _commit()}
        print(f"\nreport: {report.write(options.report, facts)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(target.is_reached for target in report.targets) else 1


def keep_bytecode(folder: Path) -> None:
    """Let every process of this run find the modules that an earlier one compiled.

    So it is wherever Python may write beside its modules. Where the environment forbids it, each
    process would compile all of them, which takes longer than a start.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
