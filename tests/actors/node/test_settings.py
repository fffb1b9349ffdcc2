import pytest

from actors.node.config import NodeConfig, resolve
from actors.node.settings import SETTINGS, Setting


def choices_of(setting: Setting) -> list[str]:
    """What a setting's refusal offers, if it is a choice between words."""
    try:
        setting.read("~")
    except ValueError as error:
        _, _, words = str(error).partition("; use one of ")
        return words.split(", ") if words else []
    return []


def test_the_help_of_a_choice_names_every_choice() -> None:
    choices = {setting.name: choices_of(setting) for setting in SETTINGS}
    assert choices["quantization"] == ["none", "int8", "int4"]
    for setting in SETTINGS:
        assert all(word in setting.help for word in choices[setting.name]), setting.name


def test_the_help_shows_what_this_version_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        resolve(["--help"], {})
    shown = capsys.readouterr().out
    assert shown.startswith("usage: tokenstage [SETTING ...]\n")
    assert "--quantization" in shown
    assert "--emu-mode" in shown
    assert "--emu-seed" not in shown


def test_each_setting_of_a_part_is_a_field_of_its_struct_and_of_no_other() -> None:
    config = NodeConfig(groups=())
    owners = {name: getattr(config, name, config) for name in ("node", *{setting.part for setting in SETTINGS} - {""})}
    assert set(owners) == {"node", "process", "ingress", "scheduler", "device", "simulated"}
    for setting in SETTINGS:
        holding = [name for name, struct in owners.items() if setting.field in struct.__annotations__]
        assert holding == [setting.part] or not setting.part, setting.name
