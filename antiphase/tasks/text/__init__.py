"""Text for language modelling: the corpus, its tokenizer, and packing into sequences."""
