"""What a trained model can do: answers found, and loss on text."""

from antiphase.evaluation.task_accuracy import score_answers
from antiphase.evaluation.language_loss import recall_hits, score_text

__all__ = ["recall_hits", "score_answers", "score_text"]
