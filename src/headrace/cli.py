"""The `headrace` command."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headrace import __version__
from headrace.common.command_line import CommandArgument, CommandOption, Commands
from headrace.errors import FENCED_EXIT_CODE, Fenced, HeadraceError

if TYPE_CHECKING:
    from headrace.config import Settings
    from headrace.server.tls import Certificates
    from headrace.session.instance import Instance
    from headrace.shell.catalog_commands import CatalogShell
    from headrace.shell.link import Link
    from headrace.shell.state_commands import StateShell

app = Commands("headrace", "A streaming SQL database whose pipelines run on Apache Spark.")
_INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""
GARBAGE_THRESHOLD = 10_000
"""New objects after which a running server looks for cyclic garbage among them."""

Host = Annotated[str | None, CommandOption("Address of the server; else the setting host.", shown="127.0.0.1")]
Port = Annotated[
    int | None,
    CommandOption("TCP port of the server; else the setting port.", least=0, most=65535, shown="4566"),
]
Master = Annotated[str | None, CommandOption("Spark master URL; by default Spark runs in this process.")]

State = Annotated[
    str | None,
    CommandOption("Where the state lives, such as s3://bucket/prefix; by default in the data directory."),
]

CatalogUrl = Annotated[
    str | None,
    CommandOption(
        "Where the catalog is: sqlite:///, postgresql://, file:/// or s3://; by default in the data directory.",
        "--catalog",
    ),
]


@app.command()
def version() -> None:
    """Print the version."""
    print(f"headrace {__version__}")


@app.command()
def serve(
    data: Annotated[
        Path | None,
        CommandOption(
            "Directory that holds the database; created if it is missing. Not needed with --catalog and --state."
        ),
    ] = None,
    host: Host = None,
    port: Port = None,
    master: Master = None,
    state: State = None,
    catalog: CatalogUrl = None,
    barrier_interval_ms: Annotated[
        int | None, CommandOption("Milliseconds between two ticks.", least=10, shown="1000")
    ] = None,
    standby: Annotated[
        bool,
        CommandOption("Serve reads of what another server does, and take over when that one is gone.", "--standby"),
    ] = False,
) -> None:
    """Serve a database over the PostgreSQL protocol until SIGTERM or Ctrl-C."""
    stop = threading.Event()
    _stop_on_signals(stop)
    gc.disable()  # what is loaded at the start stays: looking for garbage among it takes a tenth of the time
    settings = _settings(
        data, barrier_interval_ms=barrier_interval_ms, state_url=state, catalog_url=catalog, host=host, port=port
    )
    host, port = settings.host, settings.port
    settings, scratch = _with_directory(settings)
    load_server()

    instance = _open(settings, master, scratch, standby=standby)
    _stop_on_signals(stop)
    try:
        _end_with(instance, stop)
        _serve_until(stop, instance, host, port)
    except OSError as error:
        raise _Failure(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    finally:
        instance.close()
    if instance.coordinator.failure is not None:
        raise instance.coordinator.failure


def load_server() -> None:
    """Load all that a server needs to serve its first clients, and what is not needed for it not at all."""
    from headrace.common.absent import skip_pandas

    skip_pandas()
    import headrace.server.door
    import headrace.server.server
    import headrace.session.instance  # noqa: F401


def _stop_on_signals(stop: threading.Event) -> None:
    """Let SIGTERM and Ctrl-C stop the command; to be called again once Spark runs, which takes Ctrl-C for itself."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def _end_with(instance: Instance, stop: threading.Event) -> None:
    """Stop serving as soon as the database has stopped by itself."""

    def watch() -> None:
        instance.coordinator.failed.wait()
        stop.set()

    threading.Thread(target=watch, name="headrace-watch", daemon=True).start()


def _tame_garbage_collection() -> None:
    """Look for cyclic garbage less often, and never among what a server is made of.

    By default that takes a third of the time of small writes, and now and then stops all of them for long.
    """
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)
    gc.enable()


def _serve_until(stop: threading.Event, instance: Instance, host: str, port: int) -> None:
    from headrace.server.door import certificates_of, gate_of, warning_of
    from headrace.server.readers.pool import reading_processes
    from headrace.server.server import run_server_in_thread

    settings = instance.settings
    gate = gate_of(lambda: instance.settings, instance.role, instance.mock_key, instance.audit)
    certificates = certificates_of(settings)
    warning = warning_of(settings, host, instance.has_passwords)
    if warning is not None:
        print(f"warning: {warning}", file=sys.stderr)
    with run_server_in_thread(
        instance.client_session, host, port,
        max_connections=settings.max_connections, gate=gate, certificates=certificates,
        readers=reading_processes(instance),
    ) as running, _webhooks(instance, certificates):  # fmt: skip
        _tame_garbage_collection()
        shown = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost", "") else host
        print(
            f"headrace {__version__} accepting connections on {host}:{running.port} "
            f"(psql -h {shown} -p {running.port} -d dev -U root)"
            + (", as a standby" if instance.coordinator.standby() is not None else ""),
            flush=True,
        )
        reached = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
        instance.coordinator.announce(f"{reached}:{running.port}")
        # Handlers run in this thread only, and a signal that was delivered to another one does not wake it.
        while not stop.wait(0.5):
            pass
        failure = instance.coordinator.failure
        if isinstance(failure, Fenced):
            running.server.farewell = failure


def _webhooks(instance: Instance, certificates: Certificates | None) -> AbstractContextManager[object]:
    """The server of webhooks while the block runs, where a port is configured for them."""
    settings = instance.settings
    if settings.webhook_port is None:
        return nullcontext()
    from headrace.connectors.declared import needed_module
    from headrace.session.access import is_loopback

    needed_module("h11", "webhook")
    from headrace.web.http_server import serve_webhooks

    host = settings.webhook_host
    if certificates is None and not is_loopback(host):
        print(f"warning: webhooks are taken on {host} without encryption (tls_cert_file)", file=sys.stderr)
    running = serve_webhooks(instance, settings, certificates)
    print(
        f"webhooks are taken on {'http' if certificates is None else 'https'}://{host}:{running.port}/webhook/",
        flush=True,
    )
    return running


@app.command()
def prepare(
    missing: Annotated[bool, CommandOption("Only if there is no such archive.", "--missing")] = False,
) -> None:
    """Make later starts faster: keep what Java has to load for Spark in an archive in the user's cache."""
    _require_java()
    _log(_settings(None))
    from headrace.dataflow.class_archive import archive_path
    from headrace.session.rehearsal import rehearse

    path = archive_path() if missing and archive_path().exists() else rehearse()
    print(f"Spark starts from {path} ({path.stat().st_size / 2**20:.0f} MiB) from now on")


@app.command()
def sql(
    data: Annotated[
        Path | None, CommandOption("Open the database in this directory instead of connecting to a server.")
    ] = None,
    host: Host = None,
    port: Port = None,
    dbname: Annotated[str, CommandOption("Database to connect to.", "--dbname", "-d")] = "dev",
    user: Annotated[str, CommandOption("User to connect as.", "--user", "-U")] = "root",
    command: Annotated[str | None, CommandOption("Run this and leave.", "--command", "-c")] = None,
    file: Annotated[Path | None, CommandOption("Run this file and leave; - is stdin.", "--file", "-f")] = None,
    master: Master = None,
    state: State = None,
    catalog: CatalogUrl = None,
) -> None:
    """Run SQL: at a prompt, or from -c, -f or a pipe, where the first error ends it with exit code 1."""
    if data is not None:
        instance = _open(_settings(data, state_url=state, catalog_url=catalog), master)
        try:
            from headrace.shell.link import EmbeddedLink

            good = _run_sql(EmbeddedLink(instance.session()), dbname, command, file)
        finally:
            instance.close()
    else:
        from headrace.shell.connecting import connect
        from headrace.shell.link import RemoteLink

        settings = _settings(None, host=host, port=port)
        client = connect(settings.host, settings.port, user=user, dbname=dbname)
        good = _run_sql(RemoteLink(client), dbname, command, file)
    if not good:
        sys.exit(1)


def _run_sql(link: Link, dbname: str, command: str | None, file: Path | None) -> bool:
    from headrace.shell.shell import Options, Shell

    prompting = command is None and file is None and sys.stdin.isatty()
    options = Options(timing=prompting, colour=sys.stderr.isatty())
    shell = Shell(link, sys.stdout, sys.stderr, options)
    try:
        if prompting:
            from headrace.shell.interactive import interact

            interact(shell, dbname)
            return True
        return shell.run_script(command if command is not None else _script(file))
    finally:
        link.close()


def _script(file: Path | None) -> str:
    if file is None or str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _Failure(f"cannot read {file}: {error}") from error


@app.command()
def run(
    file: Annotated[Path, CommandArgument("The pipeline: a Python file with decorated functions.")],
    data: Annotated[Path | None, CommandOption("Directory that holds the database; created if it is missing.")] = None,
    url: Annotated[
        str | None, CommandOption("Use a running server: postgresql://user@host:port/db. Definitions must be SQL.")
    ] = None,
    once: Annotated[bool, CommandOption("Leave when all input there is has been taken in.", "--once")] = False,
    replace: Annotated[bool, CommandOption("Drop and make again what is defined otherwise.", "--replace")] = False,
    master: Master = None,
) -> None:
    """Create what a pipeline file defines, in the order of its dependencies, and keep it up to date until Ctrl-C."""
    if (data is None) == (url is None):
        raise _Failure("say where the database is: --data DIR or --url postgresql://...")
    if url is not None:
        from headrace.shell.remote_run import run_remote

        run_remote(file, url, replace=replace, once=once)
        return
    assert data is not None
    from headrace.session.database import Database
    from headrace.session.pipelines.loading import load_pipeline
    from headrace.shell.pipelines import run_pipeline

    stop = threading.Event()
    _stop_on_signals(stop)
    _require_java()
    pipeline = load_pipeline(file)
    database = Database(_open(_settings(data), master))
    _stop_on_signals(stop)
    try:
        _end_with(database.instance, stop)
        run_pipeline(database, pipeline, stop, once=once, replace=replace)
    finally:
        database.close()
    if database.coordinator.failure is not None:
        raise database.coordinator.failure


@app.command(passes_on=True)
def demo(arguments: list[str]) -> None:
    """Run a demonstration; `headrace demo --help` lists what there is."""
    _require_java()
    from headrace.demo import main as run_demo

    sys.exit(run_demo(arguments) or 0)


state_app = app.group("state", "Look into the state of a database, served or not.")
StateData = Annotated[Path, CommandOption("Directory that holds the database.", "--data")]


def _state(data: Path, url: str | None, catalog: str | None) -> StateShell:
    from headrace.shell.state_commands import StateShell

    return StateShell(_settings(data, state_url=url, catalog_url=catalog))


@state_app.command("ls")
def state_ls(data: StateData, state: State = None, catalog: CatalogUrl = None) -> None:
    """List the state tables: whose they are, their runs, rows, bytes and epochs."""
    _state(data, state, catalog).ls()


@state_app.command("show")
def state_show(
    table: Annotated[str, CommandArgument("Name or id of a state table, as ls prints it.")],
    data: StateData,
    rows: Annotated[bool, CommandOption("Print its rows instead of its runs.", "--rows")] = False,
    epoch: Annotated[int | None, CommandOption("Print its rows as of this epoch.", least=0)] = None,
    state: State = None,
    catalog: CatalogUrl = None,
) -> None:
    """Print a state table's runs, or its rows."""
    _state(data, state, catalog).show(table, rows=rows, epoch=epoch)


@state_app.command("verify")
def state_verify(data: StateData, state: State = None, catalog: CatalogUrl = None) -> None:
    """Read all of the state and check it; exit code 1 if anything is wrong."""
    if not _state(data, state, catalog).verify():
        sys.exit(1)


@state_app.command("gc")
def state_gc(
    data: StateData,
    dry_run: Annotated[bool, CommandOption("Only say what would be deleted.", "--dry-run")] = False,
    state: State = None,
    catalog: CatalogUrl = None,
) -> None:
    """Delete objects that nothing refers to and that are older than the grace period (vacuum_grace_ms)."""
    _state(data, state, catalog).collect(dry_run=dry_run)


catalog_app = app.group("catalog", "Look into the catalog of a database, or move it.")
DryRun = Annotated[bool, CommandOption("Only say what would be done.", "--dry-run")]
Overwrite = Annotated[bool, CommandOption("Replace another catalog that is in use there.", "--overwrite")]


def _catalog(data: Path, url: str | None) -> CatalogShell:
    from headrace.shell.catalog_commands import CatalogShell

    return CatalogShell(_settings(data, catalog_url=url))


@catalog_app.command("status")
def catalog_status(data: StateData, catalog: CatalogUrl = None) -> None:
    """Print which places the catalog is and was in, and what they say; exit code 1 if none is in use."""
    if not _catalog(data, catalog).status():
        sys.exit(1)


@catalog_app.command("dump")
def catalog_dump(data: StateData, catalog: CatalogUrl = None) -> None:
    """Print all records as lines of JSON."""
    _catalog(data, catalog).dump()


@catalog_app.command("verify")
def catalog_verify(data: StateData, catalog: CatalogUrl = None) -> None:
    """Read all of the catalog and check it; exit code 1 if anything is wrong."""
    if not _catalog(data, catalog).verify():
        sys.exit(1)


@catalog_app.command("migrate")
def catalog_migrate(
    data: StateData,
    to: Annotated[str, CommandOption("Where to: sqlite:///, postgresql://, file:/// or s3://.")],
    catalog: CatalogUrl = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
) -> None:
    """Move the catalog to another place; killed at any moment, the same again finishes it or finds it done."""
    _catalog(data, catalog).migrate(to, dry_run=dry_run, overwrite=overwrite)


@catalog_app.command("rollback")
def catalog_rollback(
    data: StateData,
    catalog: CatalogUrl = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    force: Annotated[
        bool, CommandOption("Use what was left there, though what was done since is lost.", "--force")
    ] = False,
) -> None:
    """Move the catalog back to the place that it has left: that in --data, or --catalog."""
    _catalog(data, catalog).rollback(dry_run=dry_run, overwrite=overwrite, force=force)


@catalog_app.command("takeover")
def catalog_takeover(
    host: Host = None,
    port: Port = None,
    user: Annotated[str, CommandOption("User to connect as.", "--user", "-U")] = "root",
    wait_s: Annotated[int, CommandOption("Seconds to wait until it has taken over.", least=1)] = 60,
) -> None:
    """Let the standby at --host and --port take over from the active server, which is shut out; exit code 1 if not."""
    from headrace.shell.connecting import connect
    from headrace.shell.takeover import take_over

    settings = _settings(None, host=host, port=port)
    client = connect(settings.host, settings.port, user=user, dbname="dev")
    try:
        take_over(client, wait_s)
    finally:
        client.close()


@catalog_app.command("reencrypt")
def catalog_reencrypt(data: StateData, catalog: CatalogUrl = None) -> None:
    """Encrypt all secrets by the first of the keys; a server of the database has to be stopped before."""
    _catalog(data, catalog).reencrypt()


class _Failure(HeadraceError):
    """The command cannot go on; its message is all the user needs."""


def _require_java() -> None:
    from headrace.common.java import require_java

    require_java()


def _with_directory(settings: Settings) -> tuple[Settings, Path | None]:
    """The settings with a directory; what is made for the cache of a server that needs no other goes with it."""
    if settings.is_given("data_dir"):
        return settings, None
    if settings.catalog_url is None or settings.state_url is None:
        raise _Failure("say where the database is: --data DIR, or both --catalog URL and --state URL")
    import tempfile

    scratch = Path(tempfile.mkdtemp(prefix="headrace-"))
    return settings.replaced(data_dir=scratch), scratch


def _open(settings: Settings, master: str | None, scratch: Path | None = None, *, standby: bool = False) -> Instance:
    _require_java()
    _log(settings)
    # What is loaded before clients are served goes first: Java takes all cores for seconds.
    from headrace.dataflow.spark import spark_start
    from headrace.session.instance import open_on

    for name in [name for name in os.environ if name.upper() == "HEADRACE_SECRET_KEYS"]:
        del os.environ[name]  # what is started from here on has no use for them
    start = spark_start(settings, master, settings.data_dir / "spark.log")
    return open_on(start, settings, scratch, standby=standby)


def _settings(data: Path | None, **given: Any) -> Settings:
    """The settings of this process: what the command was given goes before the environment."""
    from headrace.config import Settings

    return Settings(**{name: value for name, value in {"data_dir": data, **given}.items() if value is not None})


def _log(settings: Settings) -> None:
    from headrace.common import loggers
    from headrace.config import unknown_variables

    loggers.shown_later(_show_log, settings.log_level)
    for name in unknown_variables(os.environ):
        print(f"warning: {name} is no setting of headrace, and does nothing", file=sys.stderr)


def _show_log(level: str) -> None:
    """Load what shows messages: structlog, without rich, for tracebacks that it never shows (`log_output.py`)."""
    from headrace.common.absent import absent

    with absent("rich"):
        from headrace.session.log_output import log_to_stderr
    log_to_stderr(level)


def main() -> None:
    """The entry point: runs the command; an error is one line on stderr and exit code 1, or 3 if another server took
    the database over.
    """
    try:
        app.run()
        sys.stdout.flush()
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:  # whoever reads has seen enough: nothing is left to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except HeadraceError as error:
        hint = f"; {error.hint}" if error.hint else ""
        detail = f"\n{error.detail}" if error.detail else ""
        print(f"headrace: {error.message}{hint}{detail}", file=sys.stderr)
        sys.exit(FENCED_EXIT_CODE if isinstance(error, Fenced) else 1)


if __name__ == "__main__":
    main()
