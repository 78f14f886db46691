"""Statements whose words have been mixed up: what a client may send, and nobody means."""

from __future__ import annotations

import random
import re

WORDS = re.compile(r"/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\d+\.\d+|\w+|::|[-+*/<>=~!@#%^&|?]+|\S")
EXTRA = [
    "NULL",
    "'x'",
    "1",
    "-1",
    "1.5",
    "(",
    ")",
    ",",
    "a",
    "t",
    "u.a",
    '"A"',
    "$1",
    "*",
    "t.*",
    "SELECT",
    "FROM",
    "NOT",
    "::",
    "int",
    "text[]",
    "/* c */",
    "-- d",
    "COLLATE",
    "count(*)",
    "sum(a)\n",
    "OVER ()",
    "ROW(1, 2)",
    "ARRAY[]",
    "é",
    "DEFAULT",
    "UNION",
    "LATERAL",
    "interval '1 month'",
    "'{1,}'",
    "1e400",
    "99999999999999999999",
    "''",
    "now()",
    "q",
    "'zq\\'",
    "'zq''`'",
    "E'zq\\'`'",
    "$zq$zq'`$zq$",
    "U&'zq\\0027'",
    '"zq`"',
    '"zq""\'"',
    'AS "zq`) FROM x --"',
    "'${env:zq}'",
    "'{0}{q}zq'",
    "/* zq ' ` */",
    "/* zq /* nested */ */",
    "-- zq '\n",
    "WITH RECURSIVE",
    "zq AS (",
    "SESSION(t, ts, INTERVAL '1 s')",
    "SEMI",
    "::struct<zq int>",
    "FOR SYSTEM_TIME AS OF PROCTIME()",
    "EXCEPT (zq)",
]


def mixed(chance: random.Random, text: str, other: str, traps: bool = True) -> str:
    """A statement some words of which are missing, moved, doubled, or replaced by those of another one, or by traps."""
    words = WORDS.findall(text)
    extra = EXTRA if traps else [*WORDS.findall(other), *words]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(words))
        match chance.randrange(5):
            case 0:
                del words[at]
            case 1:
                words.insert(at, chance.choice(extra))
            case 2:
                words[at] = chance.choice(extra)
            case 3:
                there = chance.randrange(len(words))
                words[at], words[there] = words[there], words[at]
            case _:
                more = WORDS.findall(other)
                start = chance.choice((0, chance.randrange(len(more))))
                words[at:at] = more[start : start + chance.randint(1, 8)]
        if not words:
            break
    return " ".join(words)
