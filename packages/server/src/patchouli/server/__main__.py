"""`python -m patchouli.server` is `patchouli-db`."""

from __future__ import annotations

from patchouli.server.main import run

if __name__ == "__main__":
    run()
