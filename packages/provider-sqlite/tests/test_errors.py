"""Each failure of SQLite is one of the boundary, and none carries a text of SQLite."""

from __future__ import annotations

import errno
import json

import apsw
import pytest
from patchouli.provider import (
    CorruptStoreError,
    MisuseError,
    ProviderError,
    StoreFullError,
    UnavailableError,
)
from patchouli.provider_sqlite.errors import translate

MAPPED = {
    apsw.SQLITE_FULL: StoreFullError,
    apsw.SQLITE_CORRUPT: CorruptStoreError,
    apsw.SQLITE_CORRUPT_INDEX: CorruptStoreError,
    apsw.SQLITE_NOTADB: CorruptStoreError,
    apsw.SQLITE_BUSY: UnavailableError,
    apsw.SQLITE_BUSY_SNAPSHOT: UnavailableError,
    apsw.SQLITE_LOCKED: UnavailableError,
    apsw.SQLITE_READONLY: UnavailableError,
    apsw.SQLITE_READONLY_DIRECTORY: UnavailableError,
    apsw.SQLITE_PERM: UnavailableError,
    apsw.SQLITE_IOERR: UnavailableError,
    apsw.SQLITE_IOERR_FSYNC: UnavailableError,
    apsw.SQLITE_CANTOPEN: UnavailableError,
    apsw.SQLITE_NOMEM: UnavailableError,
    apsw.SQLITE_INTERRUPT: UnavailableError,
    apsw.SQLITE_CONSTRAINT_UNIQUE: MisuseError,
    apsw.SQLITE_CONSTRAINT_CHECK: MisuseError,
    apsw.SQLITE_TOOBIG: MisuseError,
    apsw.SQLITE_ERROR: ProviderError,
    apsw.SQLITE_SCHEMA: ProviderError,
}


@pytest.mark.parametrize(("code", "expected"), MAPPED.items())
def test_each_code_has_its_error(code: int, expected: type[ProviderError]) -> None:
    error = translate(apsw.exception_for(code), "commit")

    assert type(error) is expected
    assert error.operation == "commit"
    assert error.provider == "sqlite"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_system_error_about_room_is_a_full_store(number: int) -> None:
    failure = apsw.exception_for(apsw.SQLITE_IOERR_WRITE)

    assert type(translate(failure, "commit", system_errno=number)) is StoreFullError
    assert type(translate(failure, "commit", system_errno=errno.EIO)) is UnavailableError


@pytest.mark.parametrize("failure", [ValueError("secret"), OverflowError("secret")])
def test_what_cannot_be_bound_is_the_fault_of_the_caller(failure: Exception) -> None:
    error = translate(failure, "commit")

    assert type(error) is MisuseError
    assert "secret" not in str(error)


def test_no_text_of_sqlite_is_passed_on() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE t (secret_column TEXT CHECK (secret_column <> 'secret'))")
    with pytest.raises(apsw.ConstraintError) as failure:
        connection.execute("INSERT INTO t VALUES ('secret')")
    connection.close()

    error = translate(failure.value, "commit")

    assert "secret" in str(failure.value)
    assert "secret" not in str(error)
    assert "SQLITE_CONSTRAINT_CHECK" in str(error)


def test_a_start_whose_statements_do_not_fit_the_tables_met_damage() -> None:
    failure = apsw.exception_for(apsw.SQLITE_ERROR)

    assert type(translate(failure, "initialize")) is CorruptStoreError


def test_a_stored_text_that_cannot_be_read_is_damage() -> None:
    with pytest.raises(UnicodeDecodeError) as not_utf8:
        b"\xff".decode()
    with pytest.raises(json.JSONDecodeError) as not_json:
        json.loads("{")

    assert type(translate(not_utf8.value, "read")) is CorruptStoreError
    assert type(translate(not_json.value, "read")) is CorruptStoreError
