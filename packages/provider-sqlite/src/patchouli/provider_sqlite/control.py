"""Control data: causal tokens and the positions they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from patchouli.provider import CausalToken, Cursor

if TYPE_CHECKING:
    from patchouli.provider import ScopeText
    from patchouli.provider_sqlite.connection import Connection

FIND_POSITION: Final = """
SELECT cursor FROM (
    SELECT scope_id, cursor FROM change WHERE token = ?2
    UNION ALL SELECT scope_id, cursor FROM causal_token WHERE token = ?2
) WHERE scope_id = (SELECT scope_id FROM scope WHERE text = ?1)
"""
AT_POSITION: Final = """
SELECT token FROM change
WHERE cursor = ?2 AND scope_id = (SELECT scope_id FROM scope WHERE text = ?1)
UNION ALL
SELECT token FROM causal_token
WHERE cursor = ?2 AND scope_id = (SELECT scope_id FROM scope WHERE text = ?1)
"""


def position_of_token(
    connection: Connection, scope: ScopeText, token: CausalToken
) -> Cursor | None:
    """Return where `token` was published in `scope`; None in any other scope, or if unknown."""
    return connection.execute(FIND_POSITION, (scope, token)).get


def token_at(connection: Connection, scope: ScopeText, cursor: Cursor) -> CausalToken | None:
    """Return the token that was published in `scope` at `cursor`, also if its change is pruned."""
    return connection.execute(AT_POSITION, (scope, cursor)).get
