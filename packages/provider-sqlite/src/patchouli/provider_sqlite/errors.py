"""The one mapping from SQLite's failures to those of the boundary.

    apsw exception                        ProviderError
    FullError, IOError of a full disk     StoreFullError
    CorruptError, NotADBError             CorruptStoreError
    SQLError of a start                   CorruptStoreError: the tables are not those that we made
    BusyError, LockedError                UnavailableError: somebody else holds the database
    ReadOnlyError, PermissionsError       UnavailableError: make the file writable
    IOError, CantOpenError, NoMemError    UnavailableError: the machine fails, not the data
    ConstraintError, TooBigError          MisuseError: the plan contradicts the store
    UnicodeDecodeError, JSONDecodeError   CorruptStoreError: a stored text is none any more
    ValueError, OverflowError, TypeError  MisuseError: a text or a number that cannot be stored
    InterruptError                        UnavailableError: the provider stops
    anything else                         ProviderError

No text of SQLite is passed on: it may quote stored values. The name of its result code is.
"""

from __future__ import annotations

import errno
import json
from typing import Final

import apsw
from patchouli.provider import (
    CorruptStoreError,
    MisuseError,
    ProviderError,
    StoreFullError,
    UnavailableError,
)

KIND: Final = "sqlite"

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def translate(error: Exception, operation: str, *, system_errno: int = 0) -> ProviderError:
    """Return the failure of the boundary that `error` means; the caller raises it `from error`.

    Not only apsw refuses what is bound to a statement: a text with half of a surrogate pair is a
    `ValueError`, an integer beyond 64 bits an `OverflowError`.
    """
    if isinstance(error, UnicodeDecodeError | json.JSONDecodeError):
        return _damaged(operation, type(error).__name__)
    if not isinstance(error, apsw.Error):
        detail = f"a member of the plan cannot be stored ({type(error).__name__})"
        return MisuseError(KIND, operation, detail)
    code = _code_name(error)
    match error:
        case apsw.FullError():
            return _full(operation)
        case apsw.IOError() if system_errno in _NO_ROOM:
            return _full(operation)
        case apsw.CorruptError():
            return _damaged(operation, code)
        case apsw.SQLError() if operation == "initialize":
            return _damaged(operation, code)
        case apsw.NotADBError():
            detail = f"the file is not a SQLite database ({code}); move it away or restore it"
            return CorruptStoreError(KIND, operation, detail)
        case apsw.BusyError() | apsw.LockedError():
            detail = f"another program holds the database ({code}); end it and try again"
            return UnavailableError(KIND, operation, detail)
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            detail = f"the database cannot be written ({code}); make its files and disk writable"
            return UnavailableError(KIND, operation, detail)
        case apsw.IOError() | apsw.CantOpenError() | apsw.NoMemError():
            detail = f"the operating system refused ({code}); check the disk and the file system"
            return UnavailableError(KIND, operation, detail)
        case apsw.InterruptError():
            return UnavailableError(KIND, operation, "it was interrupted because the store stops")
        case apsw.ConstraintError() | apsw.TooBigError():
            detail = f"the store refuses the data of this plan ({code})"
            return MisuseError(KIND, operation, detail)
        case _:
            return ProviderError(KIND, operation, f"SQLite answered {code}")


def _damaged(operation: str, sign: str) -> CorruptStoreError:
    detail = f"the database is damaged ({sign}); restore it from a backup"
    return CorruptStoreError(KIND, operation, detail)


def _full(operation: str) -> StoreFullError:
    return StoreFullError(KIND, operation, "there is no room left on the disk; free some")


def _code_name(error: apsw.Error) -> str:
    extended: int = getattr(error, "extendedresult", 0)
    names = apsw.mapping_extended_result_codes
    name = names.get(extended) or apsw.mapping_result_codes.get(extended & 0xFF)
    return str(name) if name else type(error).__name__
