"""A child process for tests: reports what its spec says, then ends with the code it was given or waits."""

import asyncio
import sys

import msgspec

from actors.runtime.child import NodeLine, Progressed, Ready, leave_signals_to_node


class Spec(msgspec.Struct, frozen=True):
    fractions: list[float]
    exit_code: int | None = None


def main() -> None:
    leave_signals_to_node()
    line = NodeLine(int(sys.argv[2]))
    spec = msgspec.json.decode(line.receive_spec(), type=Spec)
    for fraction in spec.fractions:
        line.report(Progressed(fraction))
    if spec.exit_code is not None:
        sys.exit(spec.exit_code)
    line.report(Ready())
    asyncio.run(line.wait_stop())


if __name__ == "__main__":
    main()
