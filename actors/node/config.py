"""The node's configuration, resolved once from flags, environment and file into one frozen struct of the parts' own.

Defaults stand in those structs and nowhere else; each part is handed its own as it is. Sources and texts of settings
are `actors.node.settings`; here is what they mean together and which contradict.
"""

import json
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from actors.ingress.access import is_address_loopback
from actors.ingress.config import IngressConfig
from actors.node.devices import Group, read_groups
from actors.node.settings import SETTINGS, ConfigError, read_settings
from actors.node.units import flag
from actors.scheduler.config import SchedulerConfig
from actors.worker.config import SimulatedConfig
from cuda.devices.device import DeviceSettings

GPU_STEP_TOKENS = 2048
"""Enough for a GPU's matrix units; some 40 ms of an 8B model on an H200."""


class ProcessConfig(Struct, frozen=True, kw_only=True):
    """How every process of the node runs."""

    loop: Literal["uvloop", "asyncio"] = "uvloop"
    log_level: str = "info"
    log_format: Literal["console", "json"] = "json"
    """`console` on a terminal, if nobody has said."""


class NodeConfig(Struct, frozen=True, kw_only=True):
    """All that was asked for; what was `auto` and does not need the model is resolved."""

    model: str = "demo"
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8765
    ready_file: str | None = None
    groups: tuple[Group, ...]
    tp_is_auto: bool = False
    """The size of groups is yet to be chosen, for the model: `groups` has each of several devices by itself."""
    max_model_len: int | None = None
    drain_timeout_s: float = 30.0
    process: ProcessConfig = ProcessConfig()
    ingress: IngressConfig = IngressConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    device: DeviceSettings = DeviceSettings()
    simulated: SimulatedConfig = SimulatedConfig()

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices; worker i runs the i-th."""
        return tuple(device for group in self.groups for device in group.devices)


@dataclass(frozen=True)
class Resolved:
    """What the command line asks: a configuration to be served, or only to be printed, checked or planned for."""

    config: NodeConfig
    print_only: bool
    print_plan: bool
    check_only: bool


def resolve(arguments: Sequence[str], environment: Mapping[str, str]) -> Resolved:
    """Resolve every setting from its sources. Raises ConfigError."""
    values = read_settings(arguments, environment, _defaults())
    _refuse_contradictions(values)
    groups = read_groups(values["devices"], values["topology"], values["tp"])
    kinds = {device.partition(":")[0] for group in groups for device in group.devices}
    if values["quantization"] != "none" and kinds & {"cuda", "emu"}:
        refused = values["quantization"]
        raise ConfigError(f"--quantization: {refused} is for cpu devices only in this version; leave it out")
    parts = _by_part(values)
    parts["ingress"]["api_keys"] += _keys_of(values["api_key_file"])
    parts["process"]["log_format"] = values["log_format"] or ("console" if sys.stderr.isatty() else "json")
    parts["scheduler"]["step_tokens"] = values["step_tokens"] or _auto_step_tokens(values, kinds)
    tp_is_auto = values["tp"] is None and values["topology"] is None and len(groups) > 1
    config = msgspec.convert({**parts, **parts["node"], "groups": groups, "tp_is_auto": tp_is_auto}, NodeConfig)
    is_private = config.host == "localhost" or is_address_loopback(config.host)
    if not config.ingress.api_keys and not values["insecure"] and not is_private:
        raise ConfigError(f"--host: {config.host} is open to others without a key; add --api-key, or --insecure")
    return Resolved(config, values["print_config"], values["print_plan"], values["check"])


def _defaults() -> dict[str, Any]:
    """By key: what the structs say; a setting that is in none of them is off, or not given."""
    held = _held(NodeConfig(groups=()))
    return {
        setting.key: held[setting.field] if setting.part else False if setting.read is flag else None
        for setting in SETTINGS
    }


def _held(config: NodeConfig) -> dict[str, Any]:
    """Every field of the node's and its parts' structs, by name: no two settings share one."""
    held = asdict(config) | vars(config.device)
    for part in (config.process, config.ingress, config.scheduler, config.simulated):
        held |= asdict(part)
    return held


def _by_part(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS:
        parts.setdefault(setting.part, {})[setting.field] = values[setting.key]
    return parts


def _auto_step_tokens(values: Mapping[str, Any], kinds: set[str]) -> int:
    """Room for every row that may run and a page of prefill beside them: fewer would run at a time without a word."""
    usual = GPU_STEP_TOKENS if kinds == {"cuda"} else SchedulerConfig().step_tokens
    return max(usual, int(values["max_running"] + values["page_size"]))


def printed(config: NodeConfig) -> str:
    """Return the configuration as JSON, a line a setting; keys are counted, not shown."""
    held = _held(config) | {"api_keys": f"{len(config.ingress.api_keys)} configured"}
    names = [setting.field for setting in SETTINGS if setting.field in held]
    return json.dumps(msgspec.to_builtins({name: held[name] for name in [*names, "groups", "tp_is_auto"]}), indent=2)


def _refuse_contradictions(values: Mapping[str, Any]) -> None:
    if values["num_pages"] is not None and values["kv_memory"] is not None:
        raise ConfigError("--num-pages: contradicts --kv-memory, both size the KV pool; give one of them")
    if values["step_tokens"] is not None and values["step_tokens"] < values["page_size"]:
        least = values["page_size"]
        raise ConfigError(f"--step-tokens: {values['step_tokens']} is less than one page; use {least} or more")
    if values["ready_file"] is not None:
        _check_ready_file(Path(values["ready_file"]))
    _check_tls(values["ssl_certfile"], values["ssl_keyfile"])


def _check_ready_file(path: Path) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ConfigError(f"--ready-file: no folder to hold {path}; create it first")
    if path.is_dir():
        raise ConfigError(f"--ready-file: {path} is a folder; give the path of a file")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--ready-file: {folder} is not writable; use another folder")


def _check_tls(certfile: str | None, keyfile: str | None) -> None:
    if certfile is None and keyfile is None:
        return
    if certfile is None or keyfile is None:
        raise ConfigError("--ssl-certfile: needs --ssl-keyfile and the other way round; give both")
    for name, file in (("--ssl-certfile", certfile), ("--ssl-keyfile", keyfile)):
        if not Path(file).is_file():
            raise ConfigError(f"{name}: no file {file}; give a PEM file")
    try:  # without a password: a prompt would hold up the start
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certfile, keyfile, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        mend = "give a PEM certificate chain and its key, without a password"
        raise ConfigError(f"--ssl-certfile: {certfile} and {keyfile} cannot be used ({reason}); {mend}") from None


def _keys_of(path: str | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file: cannot read {path}: {error}; give a text file, one key a line") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"--api-key-file: {path} holds no key; write one key a line")
    return keys
