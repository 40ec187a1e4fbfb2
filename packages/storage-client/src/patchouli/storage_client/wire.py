"""Requests to lines, and lines to messages.

What goes out must be in the profile of the wire (SPEC `json`), because a line outside of it is
answered without an id: nobody would ever know which call had failed. It must also mean the same on
both sides, and the encoder of Python writes the number of a key as a text, so that two members may
become one. So what was encoded is looked through in a quick pass, which nearly every value comes
through; what does not is walked with care, to find the place of what is wrong, if anything is.

What comes in was written by the daemon and is read as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from patchouli.storage_client.errors import NotJsonError

if TYPE_CHECKING:
    from collections.abc import Callable


def _new_encoder() -> Callable[[object], str]:
    """Return what makes compact JSON of a value.

    What holds itself is found by the depth that the encoder allows: to look for it costs a fifth.
    """
    encoder = json.JSONEncoder(
        ensure_ascii=False,
        check_circular=False,
        allow_nan=False,
        separators=(",", ":"),
        default=_as_object,
    )
    # `encode` makes one of these for each value, which is half of what a short request takes.
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    escape: Any = getattr(json.encoder, "encode_basestring", None)
    if make is None or escape is None:
        return encoder.encode
    pieces = make(None, encoder.default, escape, None, ":", ",", False, False, False)  # noqa: FBT003 -- it has no names for them
    return lambda value: "".join(pieces(value, 0))


def _as_object(value: object) -> dict[object, object]:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    raise TypeError


_encode: Final = _new_encoder()

_LONG_LINE: Final = 4096  # bytes; few answers but pages of hits are longer
_LEVELS: Final = 127  # of nesting that the wire allows
_MIN_INTEGER: Final = -(2**63)
_MAX_INTEGER: Final = 2**64 - 1
_LEAVES: Final = frozenset((str, float, bool, type(None)))  # which the encoder has checked


def request_line(request_id: int, method: str, params: Mapping[str, object]) -> bytes:
    """Return the line of a request, its line feed included.

    Raises:
        NotJsonError: `params` cannot be said in the JSON of the wire.
    """
    # The request object itself is the first level.
    text = _checked(params, "", _LEVELS - 1)
    return f'{{"jsonrpc":"2.0","id":{request_id},"method":"{method}","params":{text}}}\n'.encode()


def json_text(value: object, path: str) -> str:
    """Return `value` as compact JSON that is sent as a text, in the member at `path`.

    Raises:
        NotJsonError: It cannot be said in the JSON of the wire.
    """
    return _checked(value, path, _LEVELS)


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


def _checked(value: object, path: str, levels: int) -> str:
    try:
        text = _encode(value)  # first, because it ends what never ends: a value that holds itself
        text.encode()
        if _is_plain(value, levels):
            return text
    except (TypeError, ValueError, RecursionError) as error:
        _require_json(value, path, levels)
        raise NotJsonError(path, str(error)) from error
    _require_json(value, path, levels)
    return text


def _is_plain(value: object, levels: int) -> bool:
    """Say that what was encoded is surely JSON of the wire, at half the cost of the encoding.

    Raises:
        TypeError: Some key is no string.
    """
    level: list[Any] = [value]
    for _ in range(levels):
        below: list[Any] = []
        for found in level:
            kind: type = type(found)  # pyright: ignore[reportUnknownVariableType] -- of anything
            if kind is dict:
                "".join(found)  # the quickest way to learn that every key is a string
                below += found.values()
            elif kind is list or kind is tuple:
                below += found
            elif kind is not int or not _MIN_INTEGER <= found <= _MAX_INTEGER:
                return False
        level = [found for found in below if type(found) not in _LEAVES]
        if not level:
            return True
    return False


def _require_json(value: Any, path: str, levels: int, above: tuple[Any, ...] = ()) -> None:
    """Return if `value`, which stands in the containers `above`, is JSON of the wire.

    Raises:
        NotJsonError: It is not; the error names the first member that is wrong.
    """
    if isinstance(value, str):
        _require_text(value, path)
    elif value is None or isinstance(value, bool):
        pass
    elif isinstance(value, int):
        if not _MIN_INTEGER <= value <= _MAX_INTEGER:
            raise NotJsonError(path, "an integer beyond 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise NotJsonError(path, "a number that is not finite")
    elif not isinstance(value, Mapping | list | tuple):
        raise NotJsonError(path, f"a value of type {type(value).__name__}")
    elif any(value is container for container in above):
        raise NotJsonError(path, "a container that holds itself")
    elif len(above) == levels:
        raise NotJsonError(path, f"more than {levels} nested containers")
    else:
        for name, member in _members(value, path):
            _require_json(member, f"{path}/{name}", levels, (*above, cast("object", value)))


def _members(container: Any, path: str) -> Iterable[tuple[object, Any]]:
    if not isinstance(container, Mapping):
        yield from enumerate(container)
        return
    for key, member in cast("Mapping[object, Any]", container).items():
        if not isinstance(key, str):
            raise NotJsonError(path, f"the key {key!r}, which is no string")
        _require_text(key, path)
        yield key.replace("~", "~0").replace("/", "~1"), member


def _require_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotJsonError(path, "a text with half of a surrogate pair") from error
