"""The node, read first: it resolves the configuration, starts every actor in a process of its own, and supervises.

It does nothing else: no request passes through here. In order: configuration, model folder, groups, listening socket,
children, ready line; then it waits for a signal (drain, exit 0) or a dead child (clients are told, exit 1). Read
`supervision` next.
"""

import os
import signal
import sys

from actors.node.config import NodeConfig, printed, resolve
from actors.node.devices import check_devices
from actors.node.settings import ConfigError
from actors.node.sharing import check_groups
from actors.node.startup import KernelCompiler, load_model, open_listener, run_folder
from actors.node.supervision import Supervision
from actors.runtime.child import run
from actors.runtime.log import configure_logging

EXIT_USAGE = 2


def main() -> None:
    """Run a node and exit: 0 after a clean drain, 1 when a part or a check failed, 2 for a setting that cannot be."""
    for handed in (signal.SIGTERM, signal.SIGINT):  # until the supervision handles them; a shell's `&` ignores SIGINT
        signal.signal(handed, signal.default_int_handler)  # helpers end with us
    try:
        sys.exit(_main(sys.argv[1:]))
    except ConfigError as error:
        sys.stderr.write(f"tokenstage: {error}\n")
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(1)  # before anybody could be served


def _main(arguments: list[str]) -> int:
    resolved = resolve(arguments, os.environ)
    if resolved.print_only:
        sys.stdout.write(f"{printed(resolved.config)}\n")
        return 0
    if resolved.check_only:
        from actors.node.check import check  # noqa: PLC0415 - a start has no time for it

        return check(resolved.config.devices)
    return _serve(resolved.config, print_plan=resolved.print_plan)


def _serve(config: NodeConfig, *, print_plan: bool) -> int:
    configure_logging(config.process.log_level, config.process.log_format, "node")
    check_devices(config.devices)
    with KernelCompiler() as compiler:
        model = load_model(config, compiler)
        if print_plan or config.tp_is_auto:
            from actors.node.grouping import choose_groups, printed_plan  # noqa: PLC0415 - a start without has no time

            if print_plan:
                sys.stdout.write(f"{printed_plan(config, model)}\n")
                return 0
            config = choose_groups(config, model)
        check_groups(config, model)
        with open_listener(config) as listener, run_folder() as run_dir:
            return run(Supervision(config, model, listener, run_dir).run(), config.process.loop)


if __name__ == "__main__":
    main()
