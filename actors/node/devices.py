"""Which devices form which groups: from `--devices`, `--topology` and `--tp`."""

from typing import Literal

from msgspec import Struct

from actors.node.gpus import find_gpus
from actors.node.settings import ConfigError

KINDS = ("cuda", "cpu", "emu", "counting")
Role = Literal["mixed"]


class Group(Struct, frozen=True):
    """The devices that run one plan in lockstep."""

    role: Role
    devices: tuple[str, ...]
    """In rank order."""

    @property
    def size(self) -> int:
        """How many ranks share out the model."""
        return len(self.devices)

    @property
    def label(self) -> str:
        """Its devices as users name them."""
        return ",".join(self.devices)


def read_groups(devices: str | None, topology: str | None, tp: int | None) -> tuple[Group, ...]:
    """All groups, in order; without `tp` and `topology` each device is one, until a size is chosen for the model.

    Raises ConfigError for what is malformed, contradictory or not in this version.
    """
    if topology is None:
        named = default_devices() if devices is None else _read_devices(devices, "--devices")
        return grouped(named, tp or 1)
    groups = tuple(_read_group(entry.strip()) for entry in topology.split(";"))
    members = [device for group in groups for device in group.devices]
    _check_distinct(members, "--topology")
    if devices is not None and set(_read_devices(devices, "--devices")) != set(members):
        raise ConfigError(f"--devices: {devices} are not the devices of --topology ({','.join(members)}); leave it out")
    for group in groups:
        _check_kind(group, "--topology")
        if tp is not None and group.size != tp:
            raise ConfigError(f"--tp: {tp}, but --topology has a group of {group.size} ({group.label}); leave it out")
    return groups


def default_devices() -> tuple[str, ...]:
    """Every GPU that can be used, else the CPU."""
    return tuple(f"cuda:{index}" for index in find_gpus().usable) or ("cpu:0",)


def grouped(devices: tuple[str, ...], size: int) -> tuple[Group, ...]:
    """Groups of `size` devices that are named one after the other."""
    if len(devices) % size:
        named = "one device" if len(devices) == 1 else f"{len(devices)} devices"
        mend = f"name {size} devices for each group, such as --devices {_example(devices[0], size)}"
        raise ConfigError(f"--tp: {size} does not divide the {named} ({','.join(devices)}); {mend}")
    groups = tuple(Group("mixed", devices[begin : begin + size]) for begin in range(0, len(devices), size))
    for group in groups:
        _check_kind(group, "--devices")
    return groups


def _example(device: str, size: int) -> str:
    """Short, whatever number somebody has typed."""
    kind = device.partition(":")[0]
    named = [f"{kind}:{number}" for number in range(min(size, 4))]
    return ",".join(named if size <= len(named) else [*named, "..."])


def _read_group(entry: str) -> Group:
    role, equals, devices = entry.partition("=")
    if not equals:
        raise ConfigError(f"--topology: {entry!r} is no group; write mixed=cpu:0;mixed=cpu:1 (in quotes)")
    if role in {"prefill", "decode"}:
        raise ConfigError(f"--topology: role {role!r} is not in this version yet; use mixed")
    if role != "mixed":
        raise ConfigError(f"--topology: {role!r} is no role; use mixed")
    return Group("mixed", _read_devices(devices, "--topology"))


def _check_kind(group: Group, setting: str) -> None:
    if len({device.partition(":")[0] for device in group.devices}) > 1:
        raise ConfigError(f"{setting}: {group.label} cannot share out one model; use devices of one kind in a group")


def _read_devices(listed: str, setting: str) -> tuple[str, ...]:
    devices = tuple(_read_device(name.strip(), setting) for name in listed.split(","))
    _check_distinct(list(devices), setting)
    return devices


def _read_device(name: str, setting: str) -> str:
    kind, colon, number = name.partition(":")
    if kind not in KINDS or (colon and not (number.isascii() and number.isdigit())):
        raise ConfigError(f"{setting}: {name!r} is no device; use cuda:N, cpu, cpu:N or emu:N")
    return f"{kind}:{int(number or 0)}"


def _check_distinct(devices: list[str], setting: str) -> None:
    for device in devices:
        if devices.count(device) > 1:
            raise ConfigError(f"{setting}: {device} is named twice; name each device once")
