"""What a command line says, as a call of a function."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest

from headrace.common.command_line import CommandArgument, CommandOption, Commands

calls: list[object] = []
app = Commands("tool", "A tool.")
below = app.group("below", "More of it.")


@app.command()
def copy(
    what: Annotated[Path, CommandArgument("What to copy.")],
    to: Annotated[str, CommandOption("Where to: 100% safe.")],
    user: Annotated[str, CommandOption("Who.", "--user", "-U")] = "root",
    wait_s: Annotated[int | None, CommandOption("How long.", least=1, most=9, shown="5")] = None,
    dry_run: Annotated[bool, CommandOption("Only say so.")] = False,
) -> None:
    """Copy something; 100% safe."""
    calls.append((what, to, user, wait_s, dry_run))


@below.command("ls")
def below_ls() -> None:
    """List all."""
    calls.append("ls")


@app.command(passes_on=True)
def other(arguments: list[str]) -> None:
    """Another program."""
    calls.append(arguments)


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("copy a --to b", (Path("a"), "b", "root", None, False)),
        ("copy --to=b a -U me --wait-s 9 --dry-run", (Path("a"), "b", "me", 9, True)),
        ("copy - --to b -Ume", (Path("-"), "b", "me", None, False)),
        ("below ls", "ls"),
        ("other --help -x 1", ["--help", "-x", "1"]),
    ],
)
def test_arguments(line: str, call: object) -> None:
    calls.clear()
    app.run(line.split(" "))
    assert calls == [call]


def test_a_value_may_begin_as_an_option_does() -> None:
    """SQL does where it begins with a comment."""
    calls.clear()
    app.run(["copy", "a", "--to", "--a comment\nSELECT 1", "-U", "-1"])
    app.run(["copy", "a", "--to", "--SELECT"])
    assert [call[1:3] for call in calls if isinstance(call, tuple)] == [
        ("--a comment\nSELECT 1", "-1"),
        ("--SELECT", "root"),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nope", "tool: error: no such command: nope"),
        ("below nope", "tool below: error: no such command: nope"),
        ("copy --to b", "the following arguments are required: what"),
        ("copy a", "the following arguments are required: --to"),
        ("copy a --t b", "--to"),
        ("copy a --to", "argument --to: expected one argument"),
        ("copy a --to b --nope", "tool copy: error: unrecognized arguments: --nope"),
        ("copy a b --to b", "unrecognized arguments: b"),
        ("copy a --to b --wait-s x", 'argument --wait-s: "x" is no whole number'),
        ("copy a --to b --wait-s 0", "it has to be at least 1"),
        ("copy a --to b --wait-s 10", "it may be at most 9"),
    ],
)
def test_mistakes(line: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    calls.clear()
    with pytest.raises(SystemExit) as end:
        app.run(line.split(" "))
    told = capsys.readouterr()
    assert end.value.code == 2 and calls == [] and why in told.err and told.out == ""


@pytest.mark.parametrize(
    ("line", "code", "shown"),
    [
        ([], 2, "copy   Copy something; 100% safe."),
        (["-h"], 0, "below  More of it."),
        (["below"], 2, "ls  List all."),
        (["below", "--help"], 0, "usage: tool below [-h] COMMAND ..."),
        (["copy", "-h"], 0, "Where to: 100% safe."),
        (["copy", "-h"], 0, "Copy something; 100% safe."),
        (["copy", "--help"], 0, "How long. [5]"),
    ],
)
def test_help(line: list[str], code: int, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app.run(line)
    assert end.value.code == code and shown in " ".join(capsys.readouterr().out.split("\n"))


def test_help_is_shown_whatever_the_environment_says_of_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "many")
    with pytest.raises(SystemExit) as end:
        app.run(["--help"])
    assert end.value.code == 0 and "More of it." in capsys.readouterr().out
