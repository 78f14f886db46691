"""`headrace run --url`: a pipeline whose definitions are SQL, on a running server."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.errors import InvalidParameter, NotSupported
from headrace.server.simple_client import PgClient, texts
from headrace.session.defined import as_created
from headrace.session.pipelines.apply import PipelineChanged
from headrace.session.pipelines.definitions import Definition
from headrace.session.pipelines.loading import load_pipeline
from headrace.session.pipelines.pipeline_graph import PipelineCycle, create_text
from headrace.shell.connecting import connect
from headrace.sql.parser import parse_query


def run_remote(path: Path, url: str, *, replace: bool, once: bool) -> None:
    """Create what is missing on a server, each after what it reads; it goes on by itself.

    Raises `NotSupported` for definitions that are not SQL, `PipelineChanged` as the embedded run does.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres") or not parts.hostname:
        raise InvalidParameter(f"{url!r} is not the address of a server", hint="postgresql://root@127.0.0.1:4566/dev")
    statements = ordered(load_pipeline(path).definitions)
    password = unquote(parts.password) if parts.password else None
    with connect(parts.hostname, parts.port or 4566, user=unquote(parts.username or "root"), password=password,
                 dbname=parts.path.strip("/") or "dev") as client:  # fmt: skip
        there = {name: text for name, text in _definitions(client).items() if name in statements}
        changed = [name for name, text in there.items() if _plain(text) != _plain(statements[name][1])]
        if changed and not replace:
            raise PipelineChanged(
                f"these definitions are not the ones that made what is there: {', '.join(changed)}",
                hint="--replace drops them, and all that is built on them, and makes them again",
            )
        for name in reversed(changed):
            _run(client, f'DROP {statements[name][0]} IF EXISTS "{name}" CASCADE')
        there = _definitions(client)
        for name, (kind, text) in statements.items():
            if name in there:
                print(f"unchanged {kind.lower()} {name}")
            else:
                _run(client, text)
                print(f"created {kind.lower()} {name}", flush=True)
        if once:
            _run(client, "FLUSH")


def ordered(definitions: dict[str, Definition]) -> dict[str, tuple[str, str]]:
    """Kind and statement of each definition, each after all that it reads."""
    found: dict[str, tuple[str, str]] = {}
    open_: list[str] = []

    def visit(name: str) -> None:
        if name in found:
            return
        if name in open_:
            circle = " -> ".join([*open_[open_.index(name) :], name])
            raise PipelineCycle(f"the definitions depend on each other in a circle: {circle}")
        open_.append(name)
        text, reads = _statement(definitions[name])
        for other in sorted(reads & set(definitions)):
            visit(other)
        open_.pop()
        found[name] = (definitions[name].kind.upper(), text)

    for name in definitions:
        visit(name)
    return found


def _statement(definition: Definition) -> tuple[str, set[str]]:
    if definition.kind in ("source", "table"):
        if definition.kind == "table" and definition.function() is not None:
            raise NotSupported(f"rows of the table {definition.name} on a server", hint="insert them by SQL")
        return create_text(definition), set()
    text = None if definition.kind == "function" else definition.function()
    if not isinstance(text, str):
        raise NotSupported(
            f"{definition.name} on a server: it is not SQL",
            hint="run the pipeline with --data, in a process of its own",
        )
    options = ", ".join(f"{k} = '{v}'" for k, v in definition.options.items())
    clause = f" WITH ({options})" if options else ""
    made = f'CREATE {definition.kind.upper()} "{definition.name}"{clause} AS {text.strip().rstrip(";")}'
    return made, {name.name for name in parse_query(text).tables() if name.schema in (None, "public")}


def _definitions(client: PgClient) -> dict[str, str]:
    """The statements that made what is there, by name."""
    found: dict[str, str] = {}
    for kind in ("SOURCES", "TABLES", "VIEWS", "MATERIALIZED VIEWS"):
        names = [str(row[0]) for row in _run(client, f"SHOW {kind}")]
        for name in names:
            word = kind.removesuffix("S")
            found[name] = as_created(str(_run(client, f'SHOW CREATE {word} "{name}"')[0][1]))
    return found


def _run(client: PgClient, sql: str) -> list[list[str | None]]:
    return [texts(row) for reply in client.query(sql) for row in reply.rows]


def _plain(text: str | tuple[str, str]) -> str:
    return re.sub(r"\s+", " ", text if isinstance(text, str) else text[1]).strip().rstrip(";")
