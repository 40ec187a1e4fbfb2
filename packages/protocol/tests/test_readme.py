"""The examples of the README run as they stand."""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import threading
from pathlib import Path

import pytest
from patchouli.protocol import (
    HANDSHAKE,
    METHODS,
    HandshakeParams,
    JsonObject,
    KnowledgeValue,
    LineDecoder,
    Oversized,
    RpcError,
    encode_line,
    negotiate,
    read_request,
    response,
)

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
CONNECT, MODELS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

STATUS_DATA: JsonObject = {
    "ready": True,
    "provider": "routed",
    "generation": 1,
    "recovered_after_unclean_shutdown": False,
    "pid": 1,
    "started_at_unix_ms": 0,
    "active_connections": 1,
}


def answer(line: bytes) -> JsonObject:
    request = read_request(line)
    params = METHODS[request.method].parse_params(request.params)
    if not isinstance(params, HandshakeParams):
        return response(request.id, {"meta": {}, "data": STATUS_DATA})
    result: JsonObject = {
        "protocol_version": 1,
        "server": {"version": "1.0.0", "cluster_id": "local", "node_id": "local"},
        "capabilities": [*negotiate(params)],
        "limits": {
            "max_request_bytes": 1048576,
            "max_artifact_chunk_bytes": 524288,
            "max_result_items": 100,
            "idempotency_retention_seconds": 86400,
            "change_retention_seconds": 604800,
        },
    }
    METHODS[HANDSHAKE].parse_result(result)
    return response(request.id, result)


def serve_one(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    decoder = LineDecoder()
    with connection:
        while data := connection.recv(65_536):
            for line in decoder.feed(data):
                assert not isinstance(line, Oversized)
                try:
                    message = answer(line)
                except RpcError as error:
                    message = error.response()
                connection.sendall(encode_line(message))


def test_the_socket_example_talks_to_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "socket")
    monkeypatch.setenv("PATCHOULI_ENDPOINT", path)
    printed = io.StringIO()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        server = threading.Thread(target=serve_one, args=(listener,))
        server.start()
        with contextlib.redirect_stdout(printed):
            exec(compile(CONNECT, "README.md", "exec"), {})  # noqa: S102 - our own text
        server.join(timeout=5)

    assert not server.is_alive()
    hello, status = printed.getvalue().splitlines()
    assert hello.startswith("Success(id=1, result={'protocol_version': 1,")
    assert "'capabilities': ['subscriptions']" in hello
    assert status == f"Success(id=2, result={{'meta': {{}}, 'data': {STATUS_DATA!r}}})"


def test_the_example_with_models_runs() -> None:
    printed = io.StringIO()
    names: dict[str, object] = {}

    with contextlib.redirect_stdout(printed):
        exec(compile(MODELS, "README.md", "exec"), names)  # noqa: S102 - our own text

    assert printed.getvalue() == "5b1d\n"
    assert names["params"] == {
        "meta": {"workspace_id": "atlas", "user_id": "mira"},
        "data": {"type": "memo", "id": None, "value": {"line": "order seed trays"}},
    }


def test_the_first_fact_is_a_whole_value() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", README, flags=re.DOTALL)
    value = json.loads(text)

    assert KnowledgeValue.from_value(value).to_value() == value
