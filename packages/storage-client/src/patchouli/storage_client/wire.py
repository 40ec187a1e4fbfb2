"""Requests to lines, and lines to messages.

What goes out must be in the profile of the wire (SPEC `json`), because a line outside of it is
answered without an id: nobody would ever know which call had failed. What comes in was written by
the daemon and is read as it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from patchouli.storage_client.errors import NotJsonError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _new_encoder() -> Callable[[object], str]:
    """Return what makes compact JSON of a value.

    What holds itself is found by the depth that the encoder allows: to look for it costs a fifth.
    """
    encoder = json.JSONEncoder(
        ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
    )
    # `encode` makes one of these for each value, which is half of what a short request takes.
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    escape: Any = getattr(json.encoder, "encode_basestring", None)
    if make is None or escape is None:
        return encoder.encode
    pieces = make(None, encoder.default, escape, None, ":", ",", False, False, False)  # noqa: FBT003 -- it has no names for them
    return lambda value: "".join(pieces(value, 0))


_encode: Final = _new_encoder()

# 2^63 has 19 digits, so an integer that does not fit has as many side by side.
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_LONG_INTEGER: Final = b"0" * 19
_LONG_LINE: Final = 4096  # bytes; few answers but pages of hits are longer
_DEEP: Final = 127  # levels that the wire allows, the request object being the first


def request_line(request_id: int, method: str, params: Mapping[str, object]) -> bytes:
    """Return the line of a request, its line feed included.

    Raises:
        NotJsonError: `params` cannot be said in the JSON of the wire.
    """
    try:
        line = (
            f'{{"jsonrpc":"2.0","id":{request_id},"method":"{method}","params":{_encode(params)}}}\n'
        ).encode()
        if _is_suspect(line):
            _require_profile(line)
    except (TypeError, ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise NotJsonError(f"{method}: {problem}") from error
    return line


def json_text(value: object) -> str:
    """Return `value` as compact JSON.

    Raises:
        NotJsonError: It is no JSON value.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJsonError(f"no JSON: {error}") from error


def read_line(line: bytes) -> dict[str, Any]:
    """Return the message that a line holds.

    Raises:
        ValueError: It is no JSON object, or not UTF-8.
    """
    try:
        message = _read_long(line) if len(line) > _LONG_LINE else _read_short(line.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if type(message) is not dict:
        raise ValueError("not an object")
    return cast("dict[str, Any]", message)


def _read_short(text: str) -> object:
    if text[:1] == "{":  # the daemon sends no white space, so it need not be looked for
        message, end = _DECODER.raw_decode(text)
        if end == len(text):
            return message
    return _DECODER.decode(text)


def _read_long(line: bytes) -> object:
    # Takes half the time, and a tenth of a second to load, which many programs never need.
    from pydantic_core import from_json  # noqa: PLC0415 -- see above

    return from_json(line, allow_inf_nan=False)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)


def _is_suspect(line: bytes) -> bool:
    """Say whether the line may hold what JSON has and the wire has not; few lines do."""
    return line.count(b"{") + line.count(b"[") > _DEEP or _LONG_INTEGER in line.translate(_DIGITS)


def _require_profile(line: bytes) -> None:
    # Loaded here alone: it is seldom needed and brings a parser of its own.
    from patchouli.protocol import parse_json  # noqa: PLC0415

    parse_json(line)
