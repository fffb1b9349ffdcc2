"""The node's configuration, resolved once from flags, environment and file into one frozen struct.

Sources and texts of settings are `actors.node.settings`; here is what they mean together and which contradict.
"""

import ipaddress
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

from actors.node.devices import Group, read_groups
from actors.node.settings import ConfigError, read_settings

AUTO_STEP_TOKENS = 512
"""On the CPU a step of so many prefill tokens takes about half a second: more would hold up everybody's next token."""
AUTO_GPU_STEP_TOKENS = 2048
"""Enough for a GPU's matrix units; some 40 ms of an 8B model on an H200."""


class NodeConfig(Struct, frozen=True, kw_only=True):
    """Every setting by its flag's name; what was `auto` and does not need the model is resolved."""

    model: str
    served_model_name: str | None
    host: str
    port: int
    ready_file: str | None
    groups: tuple[Group, ...]
    tp_is_auto: bool
    """The size of groups is yet to be chosen, for the model: `groups` has each of several devices by itself."""
    dtype: str
    page_size: int
    num_pages: int | None
    kv_memory: int | None
    max_model_len: int | None
    max_running: int
    step_tokens: int
    max_waiting: int
    max_waiting_tokens: int
    batching: Literal["continuous", "static"]
    prefix_cache: bool
    chunked_prefill: bool
    overlap: bool
    batch_invariant: bool
    quantization: str
    default_slo_ttft_ms: int | None
    default_slo_tpot_ms: int | None
    api_keys: tuple[str, ...]
    allowed_origins: tuple[str, ...]
    ssl_certfile: str | None
    ssl_keyfile: str | None
    max_message_bytes: int
    resume_ttl_s: float
    drain_timeout_s: float
    peer_timeout_s: float
    loop: Literal["uvloop", "asyncio"]
    log_level: str
    log_format: Literal["console", "json"]
    emu_mode: Literal["fast", "check"]
    emu_seed: int
    counting_step_s: float

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
    command = read_settings(arguments, environment)
    values = command.values
    _refuse_contradictions(values)
    groups = read_groups(values["devices"], values["topology"], values["tp"])
    kinds = {device.partition(":")[0] for group in groups for device in group.devices}
    if values["quantization"] != "none" and kinds & {"cuda", "emu"}:
        refused = values["quantization"]
        raise ConfigError(f"--quantization: {refused} is for cpu devices only in this version; leave it out")
    derived = {
        "groups": groups,
        "tp_is_auto": values["tp"] is None and values["topology"] is None and len(groups) > 1,
        "step_tokens": values["step_tokens"] or _auto_step_tokens(values, kinds),
        "api_keys": values["api_key"] + _keys_of(values["api_key_file"]),
        "allowed_origins": values["allowed_origin"],
        "resume_ttl_s": values["resume_ttl"],
        "drain_timeout_s": values["drain_timeout"],
        "peer_timeout_s": values["peer_timeout"],
        "log_format": values["log_format"] or ("console" if sys.stderr.isatty() else "json"),
        "counting_step_s": (values["counting_step_ms"] or 0) / 1000,
    }
    fields = {name: derived.get(name, values.get(name)) for name in NodeConfig.__struct_fields__}
    config = msgspec.convert(fields, NodeConfig)
    if not config.api_keys and not values["insecure"] and not is_loopback(config.host):
        raise ConfigError(f"--host: {config.host} is open to others without a key; add --api-key, or --insecure")
    return Resolved(config, command.print_config, command.print_plan, values["check"])


def _auto_step_tokens(values: Mapping[str, Any], kinds: set[str]) -> int:
    """Room for every row that may run and a page of prefill beside them: fewer would run at a time without a word."""
    usual = AUTO_GPU_STEP_TOKENS if kinds == {"cuda"} else AUTO_STEP_TOKENS
    return max(usual, int(values["max_running"] + values["page_size"]))


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def printed(config: NodeConfig) -> str:
    """Return the configuration as JSON, a line a setting; keys are counted, not shown."""
    shown: dict[str, Any] = msgspec.to_builtins(config)
    shown["api_keys"] = f"{len(config.api_keys)} configured"
    return json.dumps(shown, indent=2)


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
