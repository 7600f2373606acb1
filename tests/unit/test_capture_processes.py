"""Starting, watching and ending the processes of a capture."""

import os
import sys
import time
from pathlib import Path

import pytest

from maya.capture.command import Target
from maya.capture.processes import PlainProcesses, ProcessPool, Zygote
from maya.errors import CaptureError

PROGRAM = """
import os, subprocess, sys, time
print("number", os.environ["NUMBER"], sys.argv[1:], flush=True)
if os.environ["NUMBER"] == "9":
    helper = subprocess.Popen(["sleep", "600"])
    print("helper", helper.pid, flush=True)
    time.sleep(600)
sys.exit(int(os.environ["NUMBER"]))
"""


def is_alive(process_id: int) -> bool:
    stat = Path(f"/proc/{process_id}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(params=["plain", "zygote"])
def pool(request, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    target = Target(kind="script", name=str(script), arguments=("a",))
    env = {"PATH": os.environ["PATH"]}
    pool: ProcessPool
    if request.param == "plain":
        pool = PlainProcesses(target.argv((sys.executable,)), env)
    else:
        pool = Zygote(target, (sys.executable,), env, tmp_path / "zygote.log")
        pool.wait_until_ready(time.monotonic() + 60)
    yield pool
    pool.close()


def test_exit_codes_and_output(pool, tmp_path):
    for number in (0, 3):
        pool.start(number, {"NUMBER": str(number)}, tmp_path / f"{number}.log")
    ended: dict[int, int] = {}
    wait_for(lambda: ended.update(pool.poll()) or len(ended) == 2)
    assert ended == {0: 0, 3: 3}
    assert (tmp_path / "3.log").read_text() == "number 3 ['a']\n"


def test_helpers_end_with_their_process(pool, tmp_path):
    log = tmp_path / "9.log"
    pool.start(9, {"NUMBER": "9"}, log)
    wait_for(lambda: "helper" in log.read_text() if log.exists() else False)
    helper = int(log.read_text().split()[-1])
    assert is_alive(helper)
    pool.kill([9])
    wait_for(lambda: not is_alive(helper))
    assert pool.poll() == []


def test_closing_ends_what_runs(pool, tmp_path):
    log = tmp_path / "9.log"
    pool.start(9, {"NUMBER": "9"}, log)
    wait_for(lambda: "helper" in log.read_text() if log.exists() else False)
    pool.close()
    wait_for(lambda: not is_alive(int(log.read_text().split()[-1])))


def test_command_that_does_not_exist(tmp_path):
    with pytest.raises(CaptureError, match="nonesuch"):
        PlainProcesses(("nonesuch",), {"PATH": "/usr/bin"}).start(0, {}, tmp_path / "log")


def test_interpreter_that_fails_tells_why(tmp_path):
    target = Target(kind="script", name="t.py", arguments=())
    pool = Zygote(target, (sys.executable, "--bogus"), {}, tmp_path / "zygote.log")
    with pytest.raises(CaptureError, match="bogus"):
        pool.wait_until_ready(time.monotonic() + 30)
    pool.close()
