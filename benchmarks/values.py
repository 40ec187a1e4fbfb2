"""Realistic knowledge values of about 1 KB, and the requests made of them.

Everything is a function of a number, so that processes can make them without talking, and a query
can name a value that exists.
"""

from __future__ import annotations

import json
import random

WORDS = """
agent answer archive arrive ask atlas balance basket before begin bicycle bridge build
button calendar carry castle change choose circle city clear climb coffee collect colour
compare concert copper corner country cover create cross current daily decide deliver depend
desk direct discover distance door draft dream early east engine evening every explain
family farm favour fern festival field figure finish flight flower follow forest forget
friend garden gather gentle glass granite green guide harbour hotel house hundred image
invite island journey kitchen ladder lake language lantern large letter library listen local
lunch machine market measure meeting memory message middle minute mirror monday morning
mountain museum narrow nearby never night north notebook number office often open orange
order paper parcel patient pencil people picture planet plant platform player pocket prefer
present printer promise purple question quiet railway rather reason record region remember
repair report river road room round sample school season second shadow shelter signal silver
simple single slow small south spring square station stone storm story street summer supper
surface table teacher ticket timber today together tomorrow touch tower train travel turn
under upper valley village visit voice wait walk water weather week west wheel white window
winter wonder wood write yellow
""".split()
HANZI = (
    "东京会议安排下周三靠窗座位蓝色笔记本项目预算审批旅行计划"
    "早餐素食喜欢安静房间周末爬山图书馆数据模型训练结果"
)
SCOPE = {"workspace_id": "atlas", "user_id": "mira"}
SCOPE_TEXT = '{"user_id":"mira","workspace_id":"atlas"}'


def text_of(number: int) -> str:
    """Return some thirty words, now and then a Chinese phrase, and one word of its own."""
    chance = random.Random(number)
    words = chance.choices(WORDS, k=28)
    if number % 10 == 3:
        start = chance.randrange(len(HANZI) - 6)
        words.insert(7, HANZI[start : start + 6])
    return " ".join(words) + f" ref{number:07d}"


def value_of(number: int) -> dict[str, object]:
    """Return the knowledge value of `number`."""
    return {
        "content": {"kind": "text", "text": text_of(number)},
        "metadata": {
            "core": {
                "schema": "patchouli.knowledge@1",
                "scope": {"tenant": None, "workspace": "atlas", "user": "mira", "session": "s-5"},
                "origin": {
                    "provider": "mailbox",
                    "binding": "mail-reader",
                    "native_type": "mail",
                    "native_id": f"m-{number}",
                    "native_revision": None,
                },
                "time": {
                    "event_at": "2031-03-02T09:15:00Z",
                    "source_created_at": None,
                    "source_updated_at": None,
                    "observed_at": "2031-03-02T09:20:00Z",
                    "ingested_at": "2031-03-02T09:20:03Z",
                },
                "lifecycle": {"status": "active", "expires_at": None},
                "provenance": [
                    {
                        "kind": "observed",
                        "actor": "plugin:mail-reader",
                        "source": f"mail:m-{number}",
                        "recorded_at": "2031-03-02T09:20:00Z",
                    }
                ],
            },
            "extensions": {"acme.mail": {"folder": f"folder-{number % 1000}", "rank": number}},
        },
        "artifact": [],
        "profile": {
            "epistemic": "belief",
            "temporal": {"kind": "unknown"},
            "ownership": "user",
            "abstraction": "pattern",
            "persistence": "long_term",
            "retrieval": ["exact", "contextual"],
            "actionability": "informational",
        },
    }


def value_text(number: int) -> str:
    """Return the value of `number` as JSON text."""
    return json.dumps(value_of(number), ensure_ascii=False, separators=(",", ":"))


def request(method: str, data: str, *, meta: str = "") -> bytes:
    """Return a request line in the scope of the benchmark; `meta` is further members with comma."""
    return (
        f'{{"jsonrpc":"2.0","id":1,"method":"patchouli.{method}@1","params":{{"meta":'
        f'{{"workspace_id":"atlas","user_id":"mira"{meta}}},"data":{data}}}}}\n'
    ).encode()


HANDSHAKE = (
    b'{"jsonrpc":"2.0","id":0,"method":"patchouli.protocol.handshake@1","params":{"client":'
    b'{"name":"bench","version":"1","instance_id":"1"},"protocol_versions":[1],'
    b'"capabilities":["artifacts","subscriptions"]}}\n'
)


def create(number: int, *, prefix: str = "k") -> bytes:
    data = f'{{"type":"knowledge","id":"{prefix}-{number}","value":{value_text(number)}}}'
    return request("entity.create", data)


def read(number: int, *, prefix: str = "k") -> bytes:
    return request("entity.read", f'{{"ref":{{"type":"knowledge","id":"{prefix}-{number}"}}}}')


def update(number: int, base: str, value: str, *, prefix: str = "k") -> bytes:
    data = f'{{"ref":{{"type":"knowledge","id":"{prefix}-{number}"}},"value":{value}}}'
    return request("entity.update", data, meta=f',"base_versions":["{base}"]')


def retrieve(instruction: dict[str, object], *, limit: int = 10) -> bytes:
    query = json.dumps(json.dumps(instruction, ensure_ascii=False), ensure_ascii=False)
    data = f'{{"query":{query},"types":["knowledge"],"limit":{limit}}}'
    return request("entity.retrieve", data)
