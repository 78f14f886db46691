"""An S3 server for the tests of object storage, started when the first of them asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from object_server import S3Server, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    pytest.importorskip("moto", reason="the S3 server is moto's, of the dev extra")
    with s3_server() as server:
        yield server
