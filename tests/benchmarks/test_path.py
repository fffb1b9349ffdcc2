import re
import subprocess
import sys

MOST = {"frame to ExecuteStep": (100, 24), "StepCompleted to frame": (75, 18)}
"""Functions and modules. What makes a request's way longer should be worth it."""


def test_both_ways_are_as_short_as_they_should_be_and_measured_alike_each_time() -> None:
    first, second = (
        subprocess.run([sys.executable, "-m", "tests.benchmarks.path"], check=True, capture_output=True, text=True)
        for _ in range(2)
    )
    assert first.stdout == second.stdout
    ways = re.findall(r"^(.+): (\d+) functions in (\d+) modules$", first.stdout, re.MULTILINE)
    assert [title for title, *_ in ways] == list(MOST)
    for title, functions, modules in ways:
        assert int(functions) <= MOST[title][0], title
        assert int(modules) <= MOST[title][1], title
