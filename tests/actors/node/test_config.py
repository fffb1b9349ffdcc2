from pathlib import Path

import pytest

from actors.node.config import NodeConfig, printed, resolve
from actors.node.devices import Gpus, Group
from actors.node.settings import ConfigError


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    monkeypatch.setattr("actors.node.devices.find_gpus", lambda: Gpus((), "none"))


def config(*arguments: str, **environment: str) -> NodeConfig:
    return resolve(arguments, environment).config


def complaint(*arguments: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(arguments, environment)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_the_defaults_are_those_of_the_interface() -> None:
    defaults = config()
    device, ingress, scheduler = defaults.device, defaults.ingress, defaults.scheduler
    assert (defaults.model, defaults.host, defaults.port) == ("demo", "127.0.0.1", 8765)
    assert (device.page_size, scheduler.max_running, scheduler.max_waiting) == (16, 256, 1024)
    assert (scheduler.max_waiting_tokens, ingress.max_message_bytes) == (1_000_000, 8 * 1024 * 1024)
    assert (scheduler.resume_ttl_s, defaults.drain_timeout_s, defaults.process.loop) == (60.0, 30.0, "uvloop")
    assert (scheduler.prefix_cache, scheduler.chunked_prefill, scheduler.overlap) == (True, True, True)
    assert (device.batch_invariant, device.quantization, scheduler.batching) == (False, "none", "continuous")
    assert defaults.groups == (Group("mixed", ("cpu:0",)),)


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'page-size = 32\nmax_running = 7\nhost = "127.0.0.2"\noverlap = false\nallowed-origin = ["a", "b"]\n'
    )
    resolved = config("--config", str(file), "--page-size", "8", TOKENSTAGE_PAGE_SIZE="64", TOKENSTAGE_MAX_RUNNING="9")
    assert (resolved.device.page_size, resolved.scheduler.max_running, resolved.host) == (8, 9, "127.0.0.2")
    assert (resolved.scheduler.overlap, resolved.ingress.allowed_origins) == (False, ("a", "b"))


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("port = 0\n")
    assert config(TOKENSTAGE_CONFIG=str(file)).port == 0


@pytest.mark.parametrize(
    ("given", "num_bytes"), [("1024", 1024), ("2GiB", 2**31), ("500MB", 500_000_000), ("1.5 kib", 1536)]
)
def test_sizes_have_units(given: str, num_bytes: int) -> None:
    assert config("--kv-memory", given).device.kv_memory == num_bytes


@pytest.mark.parametrize(("given", "seconds"), [("5", 5.0), ("1.5s", 1.5), ("250ms", 0.25), ("2m", 120.0)])
def test_times_have_units(given: str, seconds: float) -> None:
    assert config("--drain-timeout", given).drain_timeout_s == seconds


def test_switches_can_be_turned_off_everywhere() -> None:
    assert not config("--no-overlap").scheduler.overlap
    assert not config(TOKENSTAGE_PREFIX_CACHE="0").scheduler.prefix_cache
    assert config("--prefix-cache", TOKENSTAGE_PREFIX_CACHE="0").scheduler.prefix_cache


def test_auto_is_a_value() -> None:
    resolved = config("--num-pages", "auto", "--max-model-len", "auto", "--step-tokens", "auto", "--tp", "auto")
    assert (resolved.device.num_pages, resolved.max_model_len) == (None, None)
    assert resolved.scheduler.step_tokens == config().scheduler.step_tokens > 0


def test_the_step_has_room_for_all_rows_and_a_page_of_prefill_unless_it_is_given() -> None:
    assert config().scheduler.step_tokens == 512
    assert config("--page-size", "1024").scheduler.step_tokens == 256 + 1024
    assert config("--max-running", "1000").scheduler.step_tokens == 1000 + 16
    assert config("--max-running", "1000", "--step-tokens", "64").scheduler.step_tokens == 64


def test_keys_come_from_flags_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# staff\nk3\n\n  k4\n")
    resolved = config("--api-key", "k1", "--api-key", "k2", "--api-key-file", str(file))
    assert resolved.ingress.api_keys == ("k1", "k2", "k3", "k4")


def test_each_device_is_a_group_of_its_own() -> None:
    assert config("--devices", "cpu,cpu:1").groups == (Group("mixed", ("cpu:0",)), Group("mixed", ("cpu:1",)))


@pytest.mark.parametrize(("usable", "devices"), [((), ("cpu:0",)), ((0, 2), ("cuda:0", "cuda:2"))])
def test_without_devices_all_gpus_are_taken_else_the_cpu(
    monkeypatch: pytest.MonkeyPatch, usable: tuple[int, ...], devices: tuple[str, ...]
) -> None:
    monkeypatch.setattr("actors.node.devices.find_gpus", lambda: Gpus(usable, ""))
    assert config().devices == devices
    assert config("--devices", "cpu").devices == ("cpu:0",)


def test_steps_are_larger_on_gpus_only() -> None:
    assert config("--devices", "cuda:0").scheduler.step_tokens == 2048
    assert config("--devices", "emu:0").scheduler.step_tokens == config("--devices", "cpu").scheduler.step_tokens == 512


def test_tp_groups_devices_as_they_are_named() -> None:
    pairs = config("--devices", "cpu:3,cpu:1,cpu:0,cpu:2", "--tp", "2").groups
    assert pairs == (Group("mixed", ("cpu:3", "cpu:1")), Group("mixed", ("cpu:0", "cpu:2")))
    assert config("--devices", "cpu:0,cpu:1", "--tp", "1").groups == config("--devices", "cpu:0,cpu:1").groups


@pytest.mark.parametrize("tp", [(), ("--tp", "auto")])
def test_the_size_of_groups_of_several_devices_is_yet_to_be_chosen(tp: tuple[str, ...]) -> None:
    assert config("--devices", "cpu:0,cpu:1", *tp).tp_is_auto


@pytest.mark.parametrize(
    "flags",
    [
        ("--devices", "cpu:0,cpu:1", "--tp", "1"),
        ("--topology", "mixed=cpu:0;mixed=cpu:1"),
        ("--devices", "cuda:0"),
        (),
    ],
)
def test_where_somebody_said_or_there_is_one_device_nothing_is_left_to_choose(flags: tuple[str, ...]) -> None:
    assert not config(*flags).tp_is_auto


def test_a_topology_has_groups_of_any_size() -> None:
    resolved = config("--topology", "mixed=cpu:0,cpu:1;mixed=counting", "--peer-timeout", "1s")
    assert resolved.groups == (Group("mixed", ("cpu:0", "cpu:1")), Group("mixed", ("counting:0",)))
    assert resolved.devices == ("cpu:0", "cpu:1", "counting:0")
    assert resolved.scheduler.peer_timeout_s == 1.0
    assert config("--topology", "mixed=cpu:0,cpu:1", "--tp", "2").groups == (Group("mixed", ("cpu:0", "cpu:1")),)


def test_a_topology_implies_its_devices() -> None:
    resolved = config("--topology", "mixed=cpu:0;mixed=cpu:1", "--devices", "cpu:1,cpu:0")
    assert resolved.devices == ("cpu:0", "cpu:1")


def test_printing_shows_no_key() -> None:
    text = printed(config("--api-key", "very-secret", "--served-model-name", "mine"))
    assert "very-secret" not in text
    assert '"served_model_name": "mine"' in text


def test_printing_is_asked_for_beside_the_configuration() -> None:
    assert resolve(["--print-config"], {}).print_only
    assert resolve(["--print-plan"], {}).print_plan
    assert not resolve([], {}).print_only
    assert resolve(["--check"], {}).check_only
    assert not resolve([], {}).check_only
    assert not resolve([], {}).print_plan


@pytest.mark.parametrize(
    ("arguments", "setting", "mend"),
    [
        (["--devics", "cpu"], "--devics", "did you mean --devices?"),
        (["--page-size", "x"], "--page-size", "use one from 1 to"),
        (["--page-size", "0"], "--page-size", "use a number from 1 to"),
        (["--page-size"], "--page-size", "--help"),
        (["--port", "65536"], "--port", "from 0 to 65,535"),
        (["--kv-memory", "2 elephants"], "--kv-memory", "2GiB"),
        (["--drain-timeout", "soon"], "--drain-timeout", "30s"),
        (["--drain-timeout", "-1"], "--drain-timeout", "30s"),
        (["--dtype", "fp8"], "--dtype", "use one of auto, bfloat16, float32"),
        (["--model", ""], "--model", "give a value"),
        (["--devices", "gpu:0"], "--devices", "use cuda:N, cpu"),
        (["--devices", "cpu:0,cpu"], "--devices", "once"),
        (["--devices", "cpu:x"], "--devices", "use cuda:N, cpu"),
        (["--devices", "cuda:0", "--quantization", "int8"], "--quantization", "leave it out"),
        (["--devices", "emu:0", "--quantization", "int4"], "--quantization", "leave it out"),
        (["--topology", "cpu:0"], "--topology", "mixed=cpu:0"),
        (["--topology", "prefill=cpu:0;decode=cpu:1"], "--topology", "use mixed"),
        (["--topology", "mixed=cpu:0,cuda:1"], "--topology", "devices of one kind"),
        (["--topology", "mixed=cpu:0,cpu:1", "--tp", "3"], "--tp", "leave it out"),
        (["--topology", "mixed=cpu:0;mixed=cpu:0"], "--topology", "once"),
        (["--topology", "mixed=cpu:0", "--devices", "cpu:1"], "--devices", "leave it out"),
        (["--devices", "cpu", "--tp", "2"], "--tp", "such as --devices cpu:0,cpu:1"),
        (["--devices", "cpu", "--tp", "2147483647"], "--tp", "such as --devices cpu:0,cpu:1,cpu:2,cpu:3,..."),
        (["--devices", "cpu:0,cpu:1,cpu:2", "--tp", "2"], "--tp", "does not divide the 3 devices"),
        (["--devices", "cpu", "--tp", "2"], "--tp", "does not divide the one device (cpu:0)"),
        (["--devices", "cpu,counting", "--tp", "2"], "--devices", "devices of one kind"),
        (["--peer-timeout", "0"], "--peer-timeout", "30s"),
        (["--num-pages", "10", "--kv-memory", "1GiB"], "--num-pages", "give one of them"),
        (["--step-tokens", "8"], "--step-tokens", "use 16 or more"),
        (["--host", "192.0.2.1"], "--host", "--api-key"),
        (["--host", "example.org"], "--host", "--insecure"),
        (["--ssl-certfile", "c.pem"], "--ssl-certfile", "give both"),
        (["--ssl-certfile", "/no/c.pem", "--ssl-keyfile", "/no/k.pem"], "--ssl-certfile", "give a PEM file"),
        (["--ssl-certfile", __file__, "--ssl-keyfile", __file__], "--ssl-certfile", "give a PEM certificate chain"),
        (["--ready-file", "/"], "--ready-file", "path of a file"),
        (["--ready-file", "/no/folder/file"], "--ready-file", "create it first"),
        (["--api-key-file", "/no/keys"], "--api-key-file", "one key a line"),
        (["--config", "/no/file.toml"], "--config", "TOML"),
        (["stray"], "stray", "--help"),
    ],
)
def test_what_cannot_be_is_refused_by_name_with_a_mend(arguments: list[str], setting: str, mend: str) -> None:
    line = complaint(*arguments)
    assert line.startswith(f"{setting}: ")
    assert mend in line


def test_unknown_settings_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    assert complaint(TOKENSTAGE_PAGESIZE="3").startswith("TOKENSTAGE_PAGESIZE: ")
    file = tmp_path / "node.toml"
    file.write_text("pagesize = 3\n")
    assert "did you mean page-size?" in complaint("--config", str(file))
    file.write_text("page-size = = 3\n")
    assert "TOML" in complaint("--config", str(file))
    assert "TOKENSTAGE_PAGE_SIZE: 'x'" in complaint(TOKENSTAGE_PAGE_SIZE="x")


def test_a_list_where_the_file_should_have_one_text_is_told_which(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('devices = ["cpu:0", "cpu:1"]\n')
    assert complaint("--config", str(file)) == (
        f"devices in {file}: is a list; give one value in quotes, such as 'cpu:0,cpu:1'"
    )


def test_variables_of_the_client_are_not_the_nodes_business() -> None:
    assert config(TOKENSTAGE_URL="ws://there", TOKENSTAGE_CLIENT_API_KEY="k").host == "127.0.0.1"


@pytest.mark.parametrize("more", [["--api-key", "k"], ["--insecure"]])
def test_a_public_host_needs_a_key_or_a_word(more: list[str]) -> None:
    assert config("--host", "0.0.0.0", *more).host == "0.0.0.0"  # noqa: S104 - nothing is bound here


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_hosts_need_no_key(host: str) -> None:
    assert config("--host", host).host == host
