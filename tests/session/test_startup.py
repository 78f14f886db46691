"""What clients ask for when they connect holds for the session, or they are told."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest

from clients import connect
from headrace.errors import HeadraceError
from headrace.server import ServerThread
from headrace.session.database import Database
from headrace.session.startup import requested
from support import WAIT_S


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", {}),
        ("-c statement_timeout=5000", {"statement_timeout": "5000"}),
        ("-cstatement_timeout=5s  --query-epoch=7", {"statement_timeout": "5s", "query_epoch": "7"}),
        ("-c search_path=a,\\ b\\\\ -c app.name=x=y", {"search_path": "a, b\\", "app.name": "x=y"}),
        ("-c Application_Name=me", {"application_name": "me"}),
    ],
)
def test_options_are_settings(options: str, settings: dict[str, str]) -> None:
    assert requested({"user": "u", "database": "d", "options": options}) == settings


@pytest.mark.parametrize(
    ("parameters", "state"),
    [
        ({"options": "-c"}, "42601"),
        ({"options": "-c statement_timeout"}, "42601"),
        ({"options": "-d 5"}, "42601"),
        ({"options": "statement_timeout=5"}, "42601"),
        ({"options": "-c no_such_setting=1"}, "42704"),
        ({"options": "-c statement_timeout=soon"}, "22023"),
        ({"is_superuser": "on"}, "55P02"),
        ({"options": "-c session_authorization=root"}, "55P02"),
        ({"client_encoding": "LATIN1"}, "22023"),
        ({"TimeZone": "Europe/Nowhere"}, "22023"),
        ({"replication": "database"}, "0A000"),
    ],
)
def test_what_cannot_be_had_is_refused(parameters: dict[str, str], state: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        requested({"user": "u", **parameters})
    assert caught.value.sqlstate == state


def test_the_zone_of_a_drivers_machine_is_taken() -> None:
    settings = requested({"user": "u", "TimeZone": "europe/berlin", "DateStyle": "ISO", "replication": "false"})
    assert settings == {"timezone": "Europe/Berlin", "datestyle": "ISO, MDY"}
    assert requested({"user": "u", "options": "-c TimeZone=GMT-02:00"}) == {"timezone": "GMT-02:00"}


def test_psycopgs_options_hold_and_are_what_reset_goes_back_to(server: ServerThread, database: Database) -> None:
    database.sql(
        "CREATE SCHEMA started; CREATE TABLE started.only_here (a int); INSERT INTO started.only_here VALUES (5)"
    )
    options = "-c search_path=started -c statement_timeout=77s"
    with connect(server, options=options, application_name="me") as connection:
        assert connection.execute("SELECT a FROM only_here").fetchone() == (5,)
        assert connection.info.parameter_status("application_name") == "me"
        connection.execute("SET statement_timeout = 1000")
        connection.execute("RESET ALL")
        assert connection.execute("SHOW statement_timeout").fetchone() == ("77s",)
        assert connection.execute("SHOW application_name").fetchone() == ("me",)
    with connect(server) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT a FROM only_here")


def test_a_connection_that_asks_for_what_there_is_not_ends_with_the_reason(server: ServerThread) -> None:
    with pytest.raises(psycopg.OperationalError, match='unrecognized configuration parameter "no_such_setting"'):
        connect(server, options="-c no_such_setting=1").close()


def test_asyncpgs_settings_hold_as_its_zone_does(server: ServerThread) -> None:
    told: list[str] = []

    async def run() -> None:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=server.port, user="root", database="dev", timeout=WAIT_S,
            server_settings={"TimeZone": "Asia/Tokyo", "statement_timeout": "55s"},
        )  # fmt: skip
        try:
            assert await connection.fetchval("SHOW statement_timeout") == "55s"
            told.append(connection.get_settings().TimeZone)
        finally:
            await connection.close()

    asyncio.run(run())
    assert told == ["Asia/Tokyo"]
