"""Text for language modelling: corpus, tokenizer, packing."""
