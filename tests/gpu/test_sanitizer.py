"""NVIDIA's compute-sanitizer over every case of `--check`, where it is installed."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import Place
from tests.gpu.small_run import run_cases


def test_the_run_that_is_watched_is_right(place: Place) -> None:
    run_cases(place.device)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_the_sanitizer_finds_nothing(tool: str) -> None:
    command = [_sanitizer(), "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "tests.gpu.small_run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def _sanitizer() -> str:
    spec = importlib.util.find_spec("nvidia")
    packages = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    folders = [*(package / "cu13" for package in packages), Path("/usr/local/cuda")]
    places = [folder / part / "compute-sanitizer" for folder in folders for part in ("bin", "compute-sanitizer")]
    found = shutil.which("compute-sanitizer") or next((str(place) for place in places if place.is_file()), None)
    if found is None:
        pytest.skip("compute-sanitizer is not installed (it comes with the CUDA toolkit)")
    return found
