"""The command; see `run`, which is a module of its own because its measurements run in processes that import it."""

import sys

from tests.benchmarks.gpu.run import main

sys.exit(main(sys.argv[1:]))
