"""Statements with RisingWave's names of connectors and options."""

from __future__ import annotations

import re

import pytest

from headrace.connectors.connection_options import GivenOptions
from headrace.connectors.other_names import of_sink, of_source
from headrace.errors import HeadraceError


def test_objects_of_a_bucket() -> None:
    given = GivenOptions(
        {"connector": "s3", "s3.region_name": "eu", "s3.bucket_name": "shop", "match_pattern": "in/*.csv",
         "format": "plain", "encode": "csv", "encode.without_header": "true", "encode.delimiter": ";",
         "s3.endpoint_url": "http://h:1"},
        {"s3.credentials.access": 7, "s3.credentials.secret": 8},
    )  # fmt: skip
    assert of_source(given) == GivenOptions(
        {"connector": "files", "path": "s3://shop/in/**/*.csv", "s3.region": "eu", "s3.endpoint": "http://h:1",
         "format": "plain", "encode": "csv", "header": "false", "delimiter": ";"},
        {"s3.access.key": 7, "s3.secret.key": 8},
    )  # fmt: skip


@pytest.mark.parametrize(("options", "path"), [
    ({"connector": "gcs", "gcs.bucket_name": "b"}, "gs://b/**/*"),
    ({"connector": "azblob", "azblob.container_name": "c", "match_pattern": "/a/b.json"}, "az://c/a/b.json"),
    ({"connector": "posix_fs", "posix_fs.root": "/data/", "match_pattern": "*_x.csv"}, "/data/**/*_x.csv"),
    ({"connector": "posix_fs", "posix_fs.root": "/data", "match_pattern": "**"}, "/data/**/*"),
    ({"connector": "s3", "s3.bucket_name": "b", "match_pattern": "a/**/*.json"}, "s3://b/a/**/*.json"),
])  # fmt: skip
def test_where_files_are_read(options: dict[str, str], path: str) -> None:
    found = of_source(GivenOptions(options)).options
    assert (found["connector"], found["path"]) == ("files", path)


@pytest.mark.parametrize(("options", "path"), [
    ({"connector": "s3", "s3.bucket_name": "b", "s3.path": "out/x/"}, "s3://b/out/x"),
    ({"connector": "azblob", "azblob.container_name": "c", "azblob.path": "o"}, "az://c/o"),
    ({"connector": "fs", "fs.path": "/data/out"}, "/data/out"),
])  # fmt: skip
def test_where_files_are_written(options: dict[str, str], path: str) -> None:
    assert of_sink(GivenOptions(options)).options == {"connector": "files", "path": path}


def test_a_table_behind_jdbc() -> None:
    given = GivenOptions(
        {"connector": "jdbc", "jdbc.url": "jdbc:postgresql://db:6432/shop?user=u", "table.name": "t",
         "schema.name": "s", "type": "upsert"}, {"password": 3},
    )  # fmt: skip
    assert of_sink(given) == GivenOptions(
        {"connector": "postgres", "host": "db", "port": "6432", "database": "shop", "user": "u", "table": "t",
         "schema": "s", "type": "upsert"}, {"password": 3},
    )  # fmt: skip


def test_how_postgres_is_spoken_to() -> None:
    given = GivenOptions({"connector": "postgres-cdc", "ssl.mode": "required"}, {"password": 1})
    assert of_source(given) == GivenOptions({"connector": "postgres-cdc", "ssl.mode": "require"}, {"password": 1})
    for options in ({"connector": "postgres-cdc", "ssl.mode": "verify-ca"}, {"connector": "postgres-cdc"}):
        assert of_source(GivenOptions(options)) == GivenOptions(options)


def test_headraces_own_names_stay() -> None:
    for options in ({"connector": "kafka", "topic": "t"}, {"connector": "files", "path": "/x"}, {}):
        assert of_source(GivenOptions(options)) == of_sink(GivenOptions(options)) == GivenOptions(options)


BUCKET = {"connector": "s3", "s3.bucket_name": "b"}
URL = "jdbc:postgresql://h/d"


@pytest.mark.parametrize(("options", "message"), [
    ({"connector": "s3"}, "s3.bucket_name is required"), ({**BUCKET, "path": "x"}, "option path"),
    ({**BUCKET, "match_pattern": "d*/x.csv"}, "may stand for a /"),
    ({**BUCKET, "match_pattern": "a?.csv"}, "may stand"),
    ({**BUCKET, "match_pattern": "a*.csv"}, "may stand"), ({**BUCKET, "match_pattern": "*a*.csv"}, "may stand"),
    ({**BUCKET, "match_pattern": "**/a*.csv"}, "may stand"),
    ({**BUCKET, "s3.region_name": "a", "s3.region": "b"}, "are the same"),
    ({"connector": "s3", "s3.bucket_name": "a*"}, "names one place"),
    ({**BUCKET, "encode.without_header": "perhaps"}, "without_header"),
    ({**BUCKET, "encode.without_header": "true", "header": "true"}, "contradict"),
    ({**BUCKET, "encode.delimiter": ";", "delimiter": ","}, "are the same"),
])  # fmt: skip
def test_sources_that_are_not_understood(options: dict[str, str], message: str) -> None:
    with pytest.raises(HeadraceError, match=re.escape(message)):
        of_source(GivenOptions(options))


@pytest.mark.parametrize(("options", "message"), [
    ({"jdbc.url": "jdbc:mysql://h/d"}, "jdbc:mysql://h/d"), ({}, "jdbc.url"),
    ({"jdbc.url": "postgresql://h/d"}, "jdbc.url"),
    ({"jdbc.url": f"{URL}?user=a&password=b"}, "has password"), ({"jdbc.url": f"{URL}?ssl=true"}, "has ssl"),
    ({"jdbc.url": f"{URL}?user=a&ssl"}, "has ssl"),
    ({"jdbc.url": "jdbc:postgresql://[h/d"}, "option jdbc.url: "),
    ({"jdbc.url": "jdbc:postgresql://u:password=b@h/d"}, "a user before its host"),
    ({"jdbc.url": f"{URL}?user=a", "user": "b"}, "given twice"), ({"jdbc.url": "jdbc:postgresql://h:x/d"}, "jdbc.url"),
    ({"jdbc.url": URL, "table.name": "t", "table": "u"}, "are the same"),
])  # fmt: skip
def test_urls_that_are_not_understood(options: dict[str, str], message: str) -> None:
    with pytest.raises(HeadraceError, match=re.escape(message)) as raised:
        of_sink(GivenOptions({"connector": "jdbc", **options}))
    assert "password=b" not in str(raised.value)
