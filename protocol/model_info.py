"""What every actor knows about the served model from the start: read from its folder, before any weight is loaded."""

from msgspec import Struct

from protocol.bounds import PositiveCount, TokenId


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """From the model's generation config; used for fields that a request leaves out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


class ModelInfo(Struct, frozen=True, kw_only=True):
    """Identity and limits of the served model."""

    name: str
    """The served name (`--served-model-name`)."""
    folder: str
    """A Hugging Face model folder: config.json, tokenizer.json, *.safetensors (a GGUF has been converted into one)."""
    vocab_size: PositiveCount
    max_model_len: PositiveCount
    """The model's own limit (max_position_embeddings after rope scaling), or the flag's if that is less."""
    eos_token_ids: tuple[TokenId, ...]
    defaults: SamplingDefaults = SamplingDefaults()
    created: int = 0
    """Seconds since 1970: the weights file's time, for `/v1/models`."""
