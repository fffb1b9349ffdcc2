"""Every setting of the node: its flag, the part that it is for, how its text is read; and where its value comes from.

Flags win over the environment (`TOKENSTAGE_<FLAG>`), which wins over the TOML file, which wins over the defaults: those
stand in the parts' own structs. What settings mean together is `actors.node.config`'s business.
"""

import argparse
import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from actors.node.units import amount, choice, count, flag, message_size, port, seconds, size, text

ENVIRONMENT_PREFIX = "TOKENSTAGE_"
CLIENT_VARIABLES = ("TOKENSTAGE_URL", "TOKENSTAGE_CLIENT_")
"""Names of the client's variables begin so; the node may share its environment."""


class ConfigError(Exception):
    """One line that names the setting and the mend; the node exits with 2."""


@dataclass(frozen=True)
class Setting:
    """One flag. `read` turns text into a value and raises ValueError with what would be right."""

    name: str
    part: str
    """Whose struct holds its value and its default: `node` or a part of it; "" for what only has a say in others."""
    read: Callable[[str], Any]
    help: str
    repeats: bool = False
    hidden: bool = False

    @property
    def key(self) -> str:
        """The name as an identifier."""
        return self.name.replace("-", "_")

    @property
    def field(self) -> str:
        """Its name in that struct, where units and plurals are said."""
        return f"{self.key}{'s' if self.repeats else '_s' if self.read is seconds else ''}"


SETTINGS: tuple[Setting, ...] = (
    Setting("model", "node", text, "a Hugging Face model folder, a .gguf file, or `demo`"),
    Setting("served-model-name", "node", text, "name shown to clients [the folder's or file's name]"),
    Setting("host", "node", text, "address to listen on"),
    Setting("port", "node", port, "port to listen on; 0 picks a free one"),
    Setting("ready-file", "node", text, "file written once the node is ready: url, pid, actors"),
    Setting("devices", "", text, "comma list of `cuda:N`, `cpu`, `cpu:N`, `emu:N` [all GPUs, else cpu]"),
    Setting(
        "tp",
        "",
        amount("auto", count(1)),
        "tensor-parallel size of a group; its cpu devices keep to their cores [auto: by predicted step time]",
    ),
    Setting("topology", "", text, "groups, such as `mixed=cpu:0,cpu:1;mixed=cpu:2,cpu:3`; implies --devices"),
    Setting(
        "dtype", "device", choice("auto", "bfloat16", "float32"), "type of weights and KV: bfloat16, float32 or auto"
    ),
    Setting("page-size", "device", count(1, 1024), "KV slots in a page"),
    Setting("num-pages", "device", amount("auto", count(1)), "KV pool of each group in pages [auto: from free memory]"),
    Setting("kv-memory", "device", amount("auto", size), "KV pool of each group in bytes, such as 2GiB [auto]"),
    Setting("max-model-len", "node", amount("auto", count(2)), "prompt + output limit in tokens [the model's]"),
    Setting("max-running", "scheduler", count(1, 4096), "rows in a step"),
    Setting("step-tokens", "", amount("auto", count(1)), "most tokens in one step [auto]"),
    Setting("max-waiting", "scheduler", count(1), "requests that may wait"),
    Setting("max-waiting-tokens", "scheduler", count(1), "prompt tokens that may wait"),
    Setting("batching", "scheduler", choice("continuous", "static"), "continuous; static exists to be compared with"),
    Setting("prefix-cache", "scheduler", flag, "reuse the KV pages of shared prefixes"),
    Setting("chunked-prefill", "scheduler", flag, "off exists to be compared with"),
    Setting("overlap", "scheduler", flag, "plan step n+1 while step n runs"),
    Setting("batch-invariant", "device", flag, "bitwise the same logits whatever the batch"),
    Setting(
        "quantization", "device", choice("none", "int8", "int4"), "of weights, made at load time: int8, int4 or none"
    ),
    Setting("default-slo-ttft-ms", "ingress", amount("none", count(1)), "target for requests that bring none"),
    Setting("default-slo-tpot-ms", "ingress", amount("none", count(1)), "target for requests that bring none"),
    Setting("api-key", "ingress", text, "key that clients must send; repeatable", repeats=True),
    Setting("api-key-file", "", text, "file with one key a line"),
    Setting("insecure", "", flag, "allow a public --host without a key"),
    Setting(
        "allowed-origin", "ingress", text, "origin of pages that may connect; repeatable [same origin]", repeats=True
    ),
    Setting("ssl-certfile", "ingress", text, "TLS certificate chain, PEM"),
    Setting("ssl-keyfile", "ingress", text, "TLS key, PEM"),
    Setting("max-message-bytes", "ingress", message_size, "largest message a client may send"),
    Setting(
        "resume-ttl", "scheduler", seconds, "how long a client may leave its stream unread before the request fails"
    ),
    Setting("drain-timeout", "node", seconds, "how long running requests may go on after SIGTERM"),
    Setting("loop", "process", choice("uvloop", "asyncio"), "event loop: uvloop or asyncio"),
    Setting(
        "log-level",
        "process",
        choice("debug", "info", "warning", "error"),
        "least level that is logged: debug, info, warning or error",
    ),
    Setting(
        "log-format",
        "",
        choice("console", "json"),
        "form of the log: console or json [console on a terminal, else json]",
    ),
    Setting("check", "", flag, "verify this machine's devices and what joins them, print a table and exit"),
    Setting("peer-timeout", "scheduler", seconds, "how long a rank of a group waits for another"),
    Setting(
        "emu-mode", "simulated", choice("fast", "check"), "check: `emu` devices report races, stray accesses; or fast"
    ),
    Setting("emu-seed", "simulated", count(0), "chooses the schedules of `emu` devices", hidden=True),
    Setting(
        "counting-step-ms", "simulated", amount("none", count(0)), "step time of `--devices counting`", hidden=True
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}


def read_settings(
    arguments: Sequence[str], environment: Mapping[str, str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return every setting by its key, and whether to `print_config` or `print_plan`; nothing is checked across them.

    Raises ConfigError.
    """
    flags = vars(_parser(defaults).parse_args(list(arguments)))
    asked = {name: flags.pop(name) for name in ("print_config", "print_plan")}
    config_file = flags.pop("config") or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    from_file = {} if config_file is None else _from_file(Path(config_file))
    from_flags = {key: _read(BY_KEY[key], given, f"--{BY_KEY[key].name}") for key, given in flags.items()}
    return {**defaults, **from_file, **_from_environment(environment), **from_flags, **asked}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for variable, given in environment.items():
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable.startswith(CLIENT_VARIABLES) or key == "config":
            continue
        setting = _known(key, variable)
        values[key] = _read(setting, given.split(",") if setting.repeats else given, variable)
    return values


def _from_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config: cannot read {path}: {error.strerror}; give a readable TOML file") from None
    except ValueError as error:
        raise ConfigError(f"--config: {path} is not TOML: {error}; mend that line") from None
    values = {}
    for name, given in table.items():
        place = f"{name} in {path}"
        setting = _known(name.replace("-", "_"), place)
        given_texts = [str(item) for item in given] if isinstance(given, list) else str(given)
        if isinstance(given_texts, list) and not setting.repeats:
            raise ConfigError(f"{place}: is a list; give one value in quotes, such as {','.join(given_texts)!r}")
        values[setting.key] = _read(setting, given_texts, place)
    return values


def _known(key: str, place: str) -> Setting:
    setting = BY_KEY.get(key)
    if setting is None:
        raise ConfigError(f"{place}: no such setting; {_suggestion(key)}")
    return setting


def _suggestion(key: str, prefix: str = "") -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), list(BY_KEY), n=1)
    return f"did you mean {prefix}{BY_KEY[close[0]].name}?" if close else "remove it, or see --help"


def _read(setting: Setting, given: Any, place: str) -> Any:  # noqa: ANN401 - values differ by setting
    try:
        if setting.repeats:
            return tuple(setting.read(item) for item in ([given] if isinstance(given, str) else given))
        return setting.read(str(given))
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            name = unknown.split()[0]
            raise ConfigError(f"{name}: no such setting; {_suggestion(name.split('=')[0].lstrip('-'), '--')}")
        raise ConfigError(f"{message.removeprefix('argument ')}; see --help")


def _parser(defaults: Mapping[str, Any]) -> argparse.ArgumentParser:
    words = "Serve a language model over WebSockets."
    parser = _Parser(prog="tokenstage", usage="%(prog)s [SETTING ...]", description=words, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE.toml", default=None, help="settings as TOML, named like the flags")
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and exit")
    parser.add_argument("--print-plan", action="store_true", help="print what --tp auto compares and exit")
    for setting in SETTINGS:
        shown = argparse.SUPPRESS if setting.hidden else f"{setting.help}{_default_text(defaults[setting.key])}"
        name = f"--{setting.name}"
        if setting.read is flag:
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=shown)
        else:
            action = "append" if setting.repeats else "store"
            parser.add_argument(name, action=action, default=argparse.SUPPRESS, help=shown, metavar="VALUE")
    return parser


def _default_text(default: object) -> str:
    if default is None or default == ():
        return ""
    return f" [{'on' if default is True else 'off' if default is False else default}]"
