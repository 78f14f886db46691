import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.common import faults
from headrace.common.faults import KNOWN, arm, arm_from_text, disarm_all, fault_point
from headrace.errors import InvalidParameter, StorageError
from support import WAIT_S


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    disarm_all()


def test_nothing_happens_unarmed() -> None:
    fault_point("commit.before")


def test_fail_names_the_point_and_leaves_others_alone() -> None:
    arm("commit.before", "fail")
    with pytest.raises(StorageError, match=r"commit\.before"):
        fault_point("commit.before")
    fault_point("commit.after")
    disarm_all()
    fault_point("commit.before")


def test_nth_passage_only() -> None:
    arm_from_text("commit.before=fail@2, commit.after=delay:1")
    fault_point("commit.before")
    with pytest.raises(StorageError):
        fault_point("commit.before")
    fault_point("commit.before")
    fault_point("commit.after")


def test_hang_until_disarmed() -> None:
    arm("commit.after", "hang")
    thread = threading.Thread(target=fault_point, args=("commit.after",), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    disarm_all()
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "text",
    ["nowhere=kill", "commit.before", "commit.before=explode", "commit.before=delay", "commit.before=fail@0",
     "commit.before=fail@x", "commit.before=fail@", "commit.before=kill:3"],
)  # fmt: skip
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        arm_from_text(text)


def test_armed_by_the_environment_to_kill() -> None:
    program = (
        "from headrace.common.faults import fault_point as f; f('commit.before'); print('one'); f('commit.before')"
    )
    environment = {**os.environ, faults.ENV_VAR: "commit.before=kill@2"}
    done = subprocess.run([sys.executable, "-uc", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "one\n")


def test_every_fault_point_is_documented_and_in_the_program() -> None:
    root = Path(headrace.__file__).parent
    used = {name for path in root.rglob("*.py") for name in re.findall(r'fault_point\("([^"]+)"\)', path.read_text())}
    assert used == set(KNOWN)
