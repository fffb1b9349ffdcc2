"""GGUF files, made into Hugging Face folders once. Read `convert` first, `tokenizer` for vocabularies."""
