"""TRL's supervised fine-tuning with packed sequences: no document sees another."""

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from tests.models.tiny import VOCABULARY, model, token_ids

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

LENGTHS = (5, 9, 3, 12, 7, 4)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"[PAD]": 0, "[EOS]": 1} | {str(i): i for i in range(2, VOCABULARY)}
    inner = Tokenizer(WordLevel(words, unk_token="[PAD]"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", eos_token="[EOS]")


def trainer(net, folder, **options):
    rows = [token_ids(1, n, seed=n)[0].tolist() for n in LENGTHS]
    arguments = trl.SFTConfig(
        output_dir=str(folder),
        max_length=24 if options.get("packing") else None,
        max_steps=2,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        **options,
    )
    data = datasets.Dataset.from_dict({"input_ids": rows})
    return trl.SFTTrainer(net, arguments, train_dataset=data, processing_class=tokenizer())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{"packing": True}, {"padding_free": True}], ids=str)
@pytest.mark.parametrize("name", ["low_rank_noise", "fixed_noise", "diff_v2"])
def test_the_loss_is_that_of_each_document_alone(name, options, tmp_path):
    net = model(name)
    runner = trainer(net, tmp_path, **options)
    batch = next(iter(runner.get_train_dataloader()))
    ids, positions = batch["input_ids"], batch["position_ids"]
    starts = (positions[0] == 0).nonzero()[:, 0].tolist()
    assert len(ids) == 1
    assert len(starts) > 1
    total, count = 0.0, 0
    with torch.no_grad():
        for first, last in zip(starts, [*starts[1:], ids.shape[1]], strict=True):
            document = ids[:, first:last]
            logits = net(document).logits[0, :-1]
            total += F.cross_entropy(logits, document[0, 1:], reduction="sum").item()
            count += len(logits)
        loss = net(**batch).loss.item()
    assert loss == pytest.approx(total / count, abs=1e-4)
    before = net.lm_head.weight.detach().clone()
    assert runner.train().training_loss > 0
    assert not torch.equal(before, net.lm_head.weight)
