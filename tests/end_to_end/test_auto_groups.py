"""A real node whose groups nobody sized."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.end_to_end.running_node import RunningNode, running_node
from tests.end_to_end.test_same_text import outputs, prompts


async def test_two_cpu_devices_form_the_group_whose_steps_are_predicted_to_be_shorter(demo_node: RunningNode) -> None:
    with running_node("--devices", "cpu:0,cpu:1", "--num-pages", "512") as node:
        lines = node.log.read_text().splitlines()
        (choice,) = [json.loads(line) for line in lines if "tensor-parallel size chosen" in line]
        assert "is predicted to take" in choice["reason"]
        ready = next(line for line in lines if line.startswith("tokenstage ready"))
        assert ("tp 2)" in ready) == (choice["tp"] == 2)
        chosen = prompts()[:16:5]
        assert await outputs(node, chosen) == await outputs(demo_node, chosen, cache_salt="auto")
        assert node.stop() == 0


@pytest.mark.parametrize("handed", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_ended_while_devices_are_tried_out_leaves_nobody_behind(handed: signal.Signals) -> None:
    command = [sys.executable, "-m", "actors.node", "--port", "0", "--devices", "cpu:0,cpu:1,cpu:2,cpu:3"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as node:
        while not (trials := [each for each in psutil.Process(node.pid).children() if is_trial(each)]):
            time.sleep(0.02)  # it is another process
        node.send_signal(handed)
        assert node.wait(20) == 1
        assert not psutil.wait_procs(trials, timeout=5)[1]


def is_trial(process: psutil.Process) -> bool:
    try:
        return "cuda.check.trials" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
