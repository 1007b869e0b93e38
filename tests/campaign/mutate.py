"""Damage to bytes, JSON and YAML that keeps enough of the shape to get past the first check."""

import json
import random
from typing import Any

NUMBERS = (
    *(0, 1, -1, 2, 7, 255, 65536, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30),
    *(0.0, -0.0, 1.0, 0.5, 1e308, 1e-320, float("nan"), float("inf")),
)
TEXTS = (
    *(
        "",
        " ",
        "a",
        "../up",
        "/etc/passwd",
        "a/b",
        ".",
        "..",
        "x" * 300,
        "é",
        "\u202e",
        "\x00",
        "\n",
    ),
    *("\ud800", "\ufeff", "F32", "BF16", "U8", "model", "null", "true", "1e999", "%s", "{{7*7}}"),
    *("${run.name}", "${oc.env:HOME}", "<image>", "<script>", "http://127.0.0.1:1/a.png", "~"),
)
RAW = (
    *(b"NaN", b"1e999", b"-Infinity", b"\xff", b"\xed\xa0\x80", b'"\\ud800"', b"\x00", b"[[[["),
    *(
        b",",
        b"}",
        b"{",
        b'"',
        b":",
        b"\\u",
        b"-",
        b"1" * 400,
        b"null",
        b"  ",
        b"\n",
        b"\xef\xbb\xbf",
    ),
)


def value(draw: random.Random, depth: int = 0) -> Any:
    """Return a value of any of JSON's kinds."""
    kind = draw.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return draw.choice(NUMBERS)
    if kind < 4:
        return draw.choice(TEXTS)
    if kind == 4:
        return draw.choice((None, True, False))
    if kind == 5:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 6:
        return {draw.choice(TEXTS): value(draw, depth + 1) for _ in range(draw.randrange(4))}
    nested: Any = []
    for _ in range(draw.choice((3, 30, 200))):
        nested = [nested]
    return nested


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every container of a tree with each of its keys."""
    found = []
    waiting = [tree]
    while waiting and len(found) < 500:
        one = waiting.pop()
        if isinstance(one, dict | list):
            for key in one if isinstance(one, dict) else range(len(one)):
                found.append((one, key))
                waiting.append(one[key])
    return found


def change(draw: random.Random, tree: Any) -> Any:
    """Return the tree with some of it replaced, removed, doubled, renamed or exchanged."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        spots = places(tree)
        if not spots:
            return value(draw)
        owner, key = draw.choice(spots)
        act = draw.randrange(7)
        if act == 0:
            del owner[key]
        elif act == 1 and isinstance(owner, dict):
            owner[draw.choice(TEXTS)] = owner[key]
        elif act == 2 and isinstance(owner[key], int) and not isinstance(owner[key], bool):
            owner[key] += draw.choice((-8, -4, -1, 1, 4, 8, 2**40))
        elif act == 6 and isinstance(owner, dict):
            owner[draw.choice(TEXTS)] = value(draw)
        elif act == 3:
            other, which = draw.choice(spots)
            if isinstance(other, dict) and which in other:
                # a copy: a tree that holds itself would have no end
                owner[key] = json.loads(json.dumps(other[which]))
        else:
            owner[key] = value(draw)
    return tree


def damage(draw: random.Random, content: bytes) -> bytes:
    """Return bytes with some flipped, cut out, put in, doubled or cut off."""
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(made) + 1)
        act = draw.randrange(5)
        if act == 0 and at < len(made):
            made[at] ^= 1 << draw.randrange(8)
        elif act == 1:
            del made[at : at + draw.choice((1, 1, 4, 40))]
        elif act == 2:
            made[at:at] = draw.choice(RAW)
        elif act == 3:
            made[at:at] = made[at : at + draw.choice((1, 8, 60))]
        elif draw.random() < 0.2:
            del made[at:]
    return bytes(made)


def as_json(draw: random.Random, tree: Any) -> bytes:
    """Write a tree as JSON: at times with keys twice, spaces, or damage to its bytes."""
    text = json.dumps(tree, ensure_ascii=draw.random() < 0.8).encode("utf-8", "surrogatepass")
    if draw.random() < 0.05 and text.startswith(b"{") and len(text) > 2:
        text = text[:-1] + b"," + text[1:]
    if draw.random() < 0.1:
        text = text.replace(b":", b" : ", draw.randrange(1, 4))
    return damage(draw, text) if draw.random() < 0.4 else text
