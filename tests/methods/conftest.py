"""The models and tokenizers of the tests of texts."""

from tests.text.conftest import bert, byte_level, without_pre_tokenizer, wordpiece  # noqa: F401
