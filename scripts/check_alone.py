"""Fail unless the package named on the command line was installed with just what it declares.

Run in an environment that holds nothing but that package and what its wheel asked for. Prints what
came along.
"""

from __future__ import annotations

import importlib
import re
import sys
from importlib.metadata import distribution, distributions


def closure(name: str) -> set[str]:
    """Return the distributions of ours that `name` needs, itself included."""
    found = {name}
    for requirement in distribution(name).requires or ():
        needed = re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower()
        if needed.startswith("patchouli-") and "extra ==" not in requirement:
            found |= closure(needed)
    return found


def main(package: str) -> int:
    """Import the package and compare what is installed with what it needs."""
    name = f"patchouli-{package}"
    importlib.import_module(f"patchouli.{package.replace('-', '_')}")
    installed = {dist.metadata["Name"].lower() for dist in distributions()}
    ours = {found for found in installed if found.startswith("patchouli-")}
    print(f"{name} came with: {', '.join(sorted(installed - {name})) or 'nothing'}")
    if ours != closure(name):
        print(f"of ours it needs {sorted(closure(name))}, installed are {sorted(ours)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
