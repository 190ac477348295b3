"""What a trained model can do: answers found, and loss on text."""

from antiphase.evaluation.answers import score_answers
from antiphase.evaluation.text import recall_hits, score_text

__all__ = ["recall_hits", "score_answers", "score_text"]
