"""A small actor library that knows nothing of language models: read `actor`, then `ref`, then `channel`."""
