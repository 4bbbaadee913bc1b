"""A small WordPiece tokenizer for tests."""

from __future__ import annotations

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = (
    "the a cat dog sat on mat in paris london ada lovelace lives works for acme who where is good bad very "
    "film ##s ##ing ##ed . , ? ! love hate i we"
).split()
VOCABULARY = [*SPECIAL, *WORDS]


def wordpiece(*, lowercase: bool = True, special: list[str] = SPECIAL) -> Tokenizer:
    tokens = [*special, *WORDS]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if "[CLS]" in special:
        tokenizer.post_processor = processors.BertProcessing(
            ("[SEP]", tokens.index("[SEP]")), ("[CLS]", tokens.index("[CLS]"))
        )
        tokenizer.add_special_tokens(special)
    return tokenizer
