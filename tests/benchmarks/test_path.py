import subprocess
import sys


def test_both_ways_are_measured_and_repeat_exactly() -> None:
    first, second = (
        subprocess.run([sys.executable, "-m", "tests.benchmarks.path"], check=True, capture_output=True, text=True)
        for _ in range(2)
    )
    assert first.stdout == second.stdout
    down, back = first.stdout.splitlines()
    assert down.startswith("frame to ExecuteStep: ")
    assert back.startswith("StepCompleted to frame: ")
