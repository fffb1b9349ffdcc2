"""Plants bugs in real kernels, and checks that the emulator's check mode reports them.

A kernel's tests keep a table of `Mutant`s and one parametrised test that calls `assert_caught`. Sizes are theirs: what
a size hides (an off-by-one behind a whole number of tiles) is caught only if `run` uses another.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda.emulator import KernelError, Settings
from cuda.emulator.cache import cache_folder

KERNELS = Path(__file__).parents[3] / "cuda" / "kernels"
CHECK_SEEDS = (0, 3, 4)  # each order of threads; copies early and late

WRONG_RESULT = "wrong-result"
UNSEEN = frozenset(
    {"race", "uninitialised"}
)  # read while somebody writes, or before anybody did: the schedule's choice
OUT_OF_BOUNDS = frozenset({"out-of-bounds", "memory-fault"})
STALE_COPY = frozenset({"pending-copy", *UNSEEN})

Run = Callable[[Settings, Path], None]
"""Runs the kernels found in a folder (the second argument) under these settings, and compares what they computed.

A kernel's host class takes them from `EmulatedBackend(settings, sources=folder)`. A wrong result is an AssertionError,
as `numpy.testing` raises it; a KernelError goes through.
"""


@dataclass(frozen=True)
class Mutant:
    """One change to one file of `cuda/kernels`.

    Attributes:
        source: The file's name; a header's too.
        old: Text that occurs in it exactly once.
        new: What stands there instead.
        expect: Kinds of KernelError, or `wrong-result`, any of which counts as caught. Empty: the change is harmless.
    """

    source: str
    old: str
    new: str
    expect: frozenset[str] = frozenset()


def plant(mutant: Mutant) -> Path:
    """A folder with every kernel source and header, this one changed; the same for the same change, so builds are kept.

    Raises:
        ValueError: `old` is not in the source, or more than once.
    """
    text = (KERNELS / mutant.source).read_text()
    if (count := text.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.old!r} occurs {count} times in {mutant.source}; a mutant changes exactly one place")
    name = hashlib.sha256(repr(mutant).encode()).hexdigest()[:16]
    folder = cache_folder("emulator") / "mutants" / name
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*KERNELS.glob("*.cu"), *KERNELS.glob("*.cuh")):
        original = path.read_text()
        changed = original.replace(mutant.old, mutant.new) if path.name == mutant.source else original
        (folder / path.name).write_text(changed)
    return folder


def outcome(folder: Path, run: Run, seed: int) -> str:
    """What check mode says: a KernelError's kind, `wrong-result`, or `right`."""
    try:
        run(Settings(mode="check", seed=seed, watchdog_s=2.0), folder)
    except KernelError as error:
        return error.kind
    except AssertionError:
        return WRONG_RESULT
    return "right"


def assert_caught(mutant: Mutant, run: Run, seeds: Sequence[int] = CHECK_SEEDS) -> None:
    """Runs until a seed shows something, which must be one of the kinds expected.

    A harmless mutant (nothing expected) must be right under all seeds.
    """
    folder = plant(mutant)
    seen = "right"
    for seed in seeds:
        seen = outcome(folder, run, seed)
        if seen != "right":
            break
    expected = mutant.expect or {"right"}
    assert seen in expected, f"{mutant.source}: {mutant.old!r} -> {mutant.new!r} gave {seen}, not {sorted(expected)}"
