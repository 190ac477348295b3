"""How good a trained model is: accuracy on synthetic tasks, and loss on text."""

from antiphase.evaluation.language_loss import recall_hits, score_text
from antiphase.evaluation.task_accuracy import score_answers

__all__ = ["recall_hits", "score_answers", "score_text"]
