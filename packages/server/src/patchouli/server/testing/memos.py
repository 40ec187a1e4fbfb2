"""A home for tests, and the requests that fit it.

Its policy has the shipped types and one more: a `memo` is any JSON value, and concurrent edits of
its member `text` are merged.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from patchouli.backend import read_resource
from patchouli.server.home import create_home

if TYPE_CHECKING:
    from pathlib import Path

META: Final[dict[str, Any]] = {"workspace_id": "atlas", "user_id": "mira"}


def create_memo_home(root: Path) -> Path:
    """Make `root` a home with the type `memo` and return it."""
    create_home(root)
    policy: dict[str, Any] = json.loads(read_resource("patchouli.default.json"))
    memos: dict[str, Any] = json.loads(json.dumps(policy["entity_types"]["knowledge"]))
    memos["value_schema"] = True
    memos["rules"] = []
    memos["fallback"]["conflict"]["merge"] = [
        {"path": "/text", "strategy": "automerge", "group_by": []}
    ]
    policy["entity_types"]["memo"] = memos
    (root / "config.json").write_text(json.dumps(policy), encoding="utf-8")
    return root


def params(data: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """Return the `params` of a request in the scope of the tests."""
    return {"meta": {**META, **meta}, "data": data}


def memo(name: str, value: Any = None) -> dict[str, Any]:
    """Return the `data` of a create; without a value the memo says its own name."""
    return {"type": "memo", "id": name, "value": {"text": name} if value is None else value}


def ref(name: str) -> dict[str, Any]:
    """Return the `data` of a read or a delete."""
    return {"ref": {"type": "memo", "id": name}}


def revised(name: str, value: Any) -> dict[str, Any]:
    """Return the `data` of an update."""
    return {**ref(name), "value": value}
