"""What tests fetch from package registries: jars by Maven, packages by npm and pip, modules by Go. Kept in a cache.

`python tests/registries.py` fetches all of it before the tests run, and says what cannot be had; the tests that need it
are skipped then.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

FETCH_S = 600
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>headrace</groupId><artifactId>for-tests</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_COPY_ONE = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class NotToBeHad(Exception):
    """A tool is missing, or its registry cannot be reached."""


def cache() -> Path:
    """The directory in which it is all kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def jars(*coordinates: str) -> Path:
    """A directory with jars, each `group:artifact:version` or with a classifier, and what they need.

    Raises NotToBeHad.
    """
    parts = [each.split(":") for each in coordinates]

    def fill(folder: Path) -> Path:
        lines = [
            _DEPENDENCY.format(*each[:3], "".join(f"<classifier>{c}</classifier>" for c in each[3:])) for each in parts
        ]
        (folder / "pom.xml").write_text(_POM.format(dependencies="".join(lines)))
        _run("mvn", ["-q", "-B", _COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder}/jars"], folder)
        return folder / "jars"

    return _kept("+".join("-".join(each[1:]) for each in parts), fill)


def archive(coordinate: str) -> Path:
    """A directory with what an archive, `group:artifact:version:tar.gz:classifier`, holds. Raises NotToBeHad."""

    def fill(folder: Path) -> Path:
        _run("mvn", ["-q", "-B", _COPY_ONE, f"-Dartifact={coordinate}", f"-DoutputDirectory={folder}"], folder)
        [found] = folder.glob("*.tar.gz")
        shutil.unpack_archive(found, folder / "held", filter="data")
        return folder / "held"

    return _kept("-".join(coordinate.split(":")[1:]), fill)


def node_modules(*packages: str) -> Path:
    """A directory that has packages of npm, each with its version, in `node_modules`. Raises NotToBeHad."""

    def fill(folder: Path) -> Path:
        (folder / "package.json").write_text('{"private": true}')
        _run("npm", ["install", "--no-audit", "--no-fund", *packages], folder)
        return folder

    return _kept("npm-" + "-".join(p.replace("@", "") for p in packages), fill)


def python_packages(*requirements: str) -> Path:
    """A directory for `PYTHONPATH` with packages that are not the ones of the environment. Raises NotToBeHad."""

    def fill(folder: Path) -> Path:
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--target", str(folder / "packages")]
        _run(sys.executable, ["-m", "pip", "install", *options, *requirements], folder)
        return folder / "packages"

    return _kept("pip-" + "-".join(r.replace("==", "-") for r in requirements), fill)


def go_program(source: Path, module: str) -> Path:
    """A program of one file that needs one module, built. Raises NotToBeHad."""

    def fill(folder: Path) -> Path:
        shutil.copy(source, folder / "main.go")
        _run("go", ["mod", "init", "headrace/client"], folder)
        _run("go", ["get", module], folder)
        _run("go", ["build", "-o", "program", "."], folder)
        return folder

    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    return _kept(f"go-{source.stem}-{digest}", fill) / "program"


def _kept(name: str, fill: Callable[[Path], Path]) -> Path:
    """The directory of a name, made if it is not there; two that make it at once do not see each other's half."""
    target = cache() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = fill(Path(scratch))
        kept = Path(scratch).with_suffix(".made")
        shutil.copytree(made, kept, symlinks=True)
        try:
            os.rename(kept, target)
        except OSError:
            if not target.is_dir():
                raise
            shutil.rmtree(kept)  # somebody else was quicker
    return target


def _run(tool: str, arguments: Sequence[str], folder: Path) -> None:
    found = shutil.which(tool)
    if found is None:
        raise NotToBeHad(f"{tool} is not installed")
    try:
        done = subprocess.run(
            [found, *arguments], cwd=folder, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotToBeHad(f"{tool} was not done within {FETCH_S} s") from error
    if done.returncode:
        raise NotToBeHad(f"{tool} failed: {(done.stdout + done.stderr)[-2000:]}")


KAFKA = ("org.apache.kafka:kafka_2.13:4.0.0",)
KAFKA_TOOLS = ("org.apache.kafka:kafka-tools:4.0.0",)
JDBC = ("org.postgresql:postgresql:42.7.4",)
ICEBERG_REST = (
    "org.apache.iceberg:iceberg-core:1.10.0", "org.apache.iceberg:iceberg-core:1.10.0:tests",
    "org.eclipse.jetty:jetty-servlet:11.0.24", "org.slf4j:slf4j-nop:2.0.17",
)  # fmt: skip
SCHEMA_REGISTRY = "io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all"
NODE = ("pg@8.13.1", "pg-cursor@2.12.1", "pg-copy-streams@6.0.6")
DUCKDB = ("duckdb==1.5.5", "duckdb-extension-postgres-scanner==1.5.5")
PGX = "github.com/jackc/pgx/v5@v5.7.2"
GO_CLIENT = Path(__file__).parent / "e2e" / "foreign" / "client.go"


def main() -> None:
    """Fetch everything; what cannot be had is told."""
    wanted: dict[str, Callable[[], Path]] = {
        "Kafka": lambda: jars(*KAFKA), "Kafka's tools": lambda: jars(*KAFKA_TOOLS),
        "PostgreSQL's JDBC driver": lambda: jars(*JDBC),
        "Iceberg's REST catalog": lambda: jars(*ICEBERG_REST),
        "Apicurio's schema registry": lambda: archive(SCHEMA_REGISTRY),
        "node-postgres": lambda: node_modules(*NODE),
        "DuckDB's extension for PostgreSQL": lambda: python_packages(*DUCKDB),
        "pgx": lambda: go_program(GO_CLIENT, PGX),
    }  # fmt: skip
    for name, fetch in wanted.items():
        try:
            fetch()
        except NotToBeHad as error:
            print(f"no {name}: {error}; the tests that need it are skipped", file=sys.stderr)


if __name__ == "__main__":
    main()
