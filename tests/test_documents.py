import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md"])
def test_what_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:actors|client|cuda|protocol|tests|examples)/[\w./]*)`", text))
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()
