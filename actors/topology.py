"""Which devices form which groups: from `--devices`, `--topology` and `--tp`."""

from typing import Literal

from msgspec import Struct

from actors.settings import ConfigError

KINDS = ("cuda", "cpu", "emu", "counting")
Role = Literal["mixed"]


class Group(Struct, frozen=True):
    """The devices that run one plan in lockstep."""

    role: Role
    devices: tuple[str, ...]


def read_groups(devices: str | None, topology: str | None, tp: int | None) -> tuple[Group, ...]:
    """All groups, in order. Raises ConfigError for what is malformed, contradictory or not in this version."""
    if tp is not None and tp > 1:
        raise ConfigError(f"--tp: {tp} devices in a group are not in this version yet; use --tp 1")
    if topology is None:
        return tuple(Group("mixed", (device,)) for device in _read_devices(devices or "cpu", "--devices"))
    groups = tuple(_read_group(entry.strip()) for entry in topology.split(";"))
    named = [device for group in groups for device in group.devices]
    _check_distinct(named, "--topology")
    if devices is not None and set(_read_devices(devices, "--devices")) != set(named):
        raise ConfigError(f"--devices: {devices} are not the devices of --topology ({','.join(named)}); leave it out")
    return groups


def _read_group(entry: str) -> Group:
    role, equals, devices = entry.partition("=")
    if not equals:
        raise ConfigError(f"--topology: {entry!r} is no group; write mixed=cpu:0;mixed=cpu:1 (in quotes)")
    if role in {"prefill", "decode"}:
        raise ConfigError(f"--topology: role {role!r} is not in this version yet; use mixed")
    if role != "mixed":
        raise ConfigError(f"--topology: {role!r} is no role; use mixed")
    members = _read_devices(devices, "--topology")
    if len(members) > 1:
        raise ConfigError(f"--topology: {entry!r} has {len(members)} devices in a group, not in this version; use one")
    return Group("mixed", members)


def _read_devices(listed: str, setting: str) -> tuple[str, ...]:
    devices = tuple(_read_device(name.strip(), setting) for name in listed.split(","))
    _check_distinct(list(devices), setting)
    return devices


def _read_device(name: str, setting: str) -> str:
    kind, colon, number = name.partition(":")
    if kind not in KINDS or (colon and not (number.isascii() and number.isdigit())):
        raise ConfigError(f"{setting}: {name!r} is no device; use cpu or cpu:N")
    if kind in {"cuda", "emu"}:
        raise ConfigError(f"{setting}: {kind} devices are not in this version yet ({name}); use cpu")
    return f"{kind}:{int(number or 0)}"


def _check_distinct(devices: list[str], setting: str) -> None:
    for device in devices:
        if devices.count(device) > 1:
            raise ConfigError(f"{setting}: {device} is named twice; name each device once")
