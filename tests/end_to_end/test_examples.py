"""Every example runs as it is printed, against the demo model."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.running_node import RunningNode

ROOT = Path(__file__).parents[2]
SHOWS = {
    "stream.py": "tokens, TTFT",
    "many_streams.py": "The capital of France is Paris",
    "stop_early.py": "[cancelled after",
    "raw_websocket.py": "'type': 'finished'",
    "openai_responses.py": "Paris",
}


def run(node: RunningNode, *command: str, stdin: str = "") -> str:
    """Run a program with the repository on its path; its standard output, with nothing on standard error."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TOKENSTAGE_URL": node.url},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_every_example_has_a_test() -> None:
    assert {file.name for file in (ROOT / "examples").glob("*.py")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_the_example_runs(demo_node: RunningNode, name: str) -> None:
    url = demo_node.http_url if name == "openai_responses.py" else demo_node.url
    assert SHOWS[name] in run(demo_node, f"examples/{name}", url)


def test_a_piped_question_is_answered_in_plain_text(demo_node: RunningNode) -> None:
    answer = run(
        demo_node,
        "-m",
        "client",
        "chat",
        "--temperature",
        "0",
        "--max-tokens",
        "24",
        stdin="What is the capital of France?",
    )
    assert "Paris" in answer
    assert "\x1b" not in answer


def test_generate_and_models_print_what_the_server_says(demo_node: RunningNode) -> None:
    assert " Paris" in run(
        demo_node, "-m", "client", "generate", "The capital of France is", "--temperature", "0", "--max-tokens", "4"
    )
    assert run(demo_node, "-m", "client", "models").startswith("demo\t")


@pytest.mark.parametrize("dialect", ["stream", "responses"])
def test_bench_measures_a_real_server(demo_node: RunningNode, dialect: str) -> None:
    flags = "--num-requests 4 --input-len 16 --output-len 8 --max-concurrency 2 --goodput ttft:60000".split()
    block = run(demo_node, "-m", "client", "bench", "--dialect", dialect, *flags)
    assert "Successful requests:                     4" in block
    assert "Goodput over offered requests:           1.00" in block
    if dialect == "stream":
        assert "Total input tokens:                      64" in block
        assert "Total generated tokens:                  32" in block
